"""The runner: run a study's remaining trials one at a time, under the machine's lock, and store their records.

A `Task` is a trial with what is known of it; a `RunObserver` follows a run (the live table, the progress file).
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from trainoff import data, engines
from trainoff.clusters import Processes, namespaces
from trainoff.engines import Engine
from trainoff.errors import TrainoffError
from trainoff.records import Record, Store, cannot_write
from trainoff.runner.events import TrialState
from trainoff.runner.job import make_job, model_of, rows_of
from trainoff.runner.machine import ControlKernel
from trainoff.runner.record_builder import Identity, bare_record, full_record
from trainoff.runner.status import TrialStatus, check_preconditions
from trainoff.runner.trial_main import threads
from trainoff.runner.trial_process import ExitInfo, Sandbox, TrialProcess, choose_cpus
from trainoff.study import Study, Trial

HOST_NETWORK = {
    "attach": "the cluster it attaches to is on the host's network",
    "hosts": "its workers are on other hosts, which only the host's network reaches",
}
MOST_PARAMETERS = 10**9


class Runner:
    """Runs tasks one after the other, each in its own process tree, holding the machine's lock."""

    def __init__(self, store: Store, view: RunObserver) -> None:
        self._store = store
        self._view = view
        self._why_not = namespaces.why_not()
        self._control = ControlKernel()

    def run(self, tasks: list[Task]) -> Outcome:
        """Do what is missing. Ctrl-C finishes the record of the running trial as interrupted, then stops."""
        self._store.prepare()
        self._view.planned(tasks)
        self._interrupted = False
        for task in tasks:
            if self._interrupted:
                break
            if task.to_run:
                self._run_or_stop(task)
        return Outcome(tasks, self._interrupted)

    def _run_or_stop(self, task: Task) -> None:
        try:
            self._run(task)
        except KeyboardInterrupt:
            self._interrupted = True

    def _run(self, task: Task) -> None:
        with machine_lock(self._view.waiting):
            newest = self._store.latest(task.trial_id)
            if newest and not newest.unfinished and (task.record is None or newest.attempt > task.record.attempt):
                task.record = newest  # another run did it while this one waited
            else:
                self._attempt(task, newest.attempt + 1 if newest else 1)
            task.again = False
        if task.record:
            self._view.finished(task, task.record)

    def _attempt(self, task: Task, attempt: int) -> None:
        """Make a record of the trial, whatever it takes and however it ends."""
        identity = Identity(task.trial_id, attempt, data.identity(task.trial.data))
        verdict = check_preconditions(task.trial, task.engine)
        record = bare_record(task.trial, task.engine, identity, verdict or TrialStatus("ok"))
        try:
            with self._store.stage(task.trial_id) as folder, ExitStack() as measured:
                if verdict:
                    self._store.commit(record, folder)
                    task.record = record
                    return
                self._view.started(task)
                # Made before the trial: what it takes to judge the trial is at hand when it ends.
                job = make_job(task.trial, Processes(1, folder), folder)
                ending = self._perform(task, record, folder, measured)
                record.noise["control_after"] = None if ending.stopped else self._control.after(_cpu(record))
                full_record(record, task.trial, ending, job, task.engine.differs(task.trial))
                self._store.commit(record, folder)
                task.record, task.again = record, False
        except OSError as error:
            raise TrainoffError(cannot_write(self._store.folder, error)) from error

    def _perform(self, task: Task, record: Record, folder: Path, measured: ExitStack) -> ExitInfo:
        """Run the trial on its stage, to whatever end; from then on, what was measured is not lost to Ctrl-C."""
        trial = task.trial
        outside = HOST_NETWORK.get(trial.cluster) or task.engine.outside(trial)
        cpus, record.oversubscribed = choose_cpus(trial)
        why_not = self._why_not or _no_namespaces(trial)
        stage = Sandbox(folder, cpus, why_not is None, outside is None, task.engine.trainer)
        record.isolation = {
            "kind": "process-group" if why_not else "namespaces",
            "own_network": why_not is None and outside is None,
            "cpus": cpus,
            "threads": threads(trial.cores),
            "reason": why_not or outside,
        }
        record.noise["control_before"] = self._control.before(_cpu(record))
        with TrialProcess(trial, stage, lambda state: self._view.update(task, state), task.give_up) as trial_process:
            ending = trial_process.run()
            measured.enter_context(defer_interrupts())
        self._interrupted = ending.stopped
        return ending


def _no_namespaces(trial: Trial) -> str | None:
    """Why a trial keeps the machine's namespaces though it could have its own: in a user's, ssh trusts no file."""
    mapped = trial.cluster == "hosts" and os.geteuid() != 0
    return "ssh does not trust the system's files in a user namespace" if mapped else None


def _cpu(record: Record) -> int:
    """The CPU on which the control kernel runs: the first of the trial's."""
    first: int = record.isolation["cpus"][0]
    return first


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done: what has been measured is not lost to impatience."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    polite = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [each for each in polite if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, lambda number, _: asked.append(number)) for each in heeded}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if asked:
        raise KeyboardInterrupt


def get_data(study: Study, say: data.Progress | None) -> None:
    """Bring every dataset of the study into the cache while there is a network, and see that it fits the trials."""
    trials = study.trials()
    loaded = {name: data.get(name, say=say) for name in dict.fromkeys(trial.data for trial in trials)}
    for trial in trials:
        rows = rows_of(trial, loaded[trial.data])
        parameters = model_of(trial, rows).parameters
        if parameters > MOST_PARAMETERS:
            raise TrainoffError(
                f"hidden = {trial.params.get('hidden')} makes a network of {parameters:,} weights; "
                f"at most {MOST_PARAMETERS:,} can be trained here"
            )


@dataclass
class Task:
    """A trial with all that the runner knows of it."""

    trial: Trial
    engine: Engine
    trial_id: str
    record: Record | None = None  # the newest attempt, if there is one
    again: bool = False  # whether to run it although there is a record
    give_up: Callable[[TrialState], str | None] | None = None  # why it need not go on, asked while it runs

    @property
    def to_run(self) -> bool:
        return self.record is None or self.again


@dataclass
class Outcome:
    """What a run came to."""

    tasks: list[Task]
    interrupted: bool = False

    @property
    def records(self) -> list[Record]:
        return [task.record for task in self.tasks if task.record]


def prepare(study: Study, store: Store, retry: Sequence[str] = ()) -> list[Task]:
    """The trials of a study in the order they run, each with its newest record; marks which to run again."""
    tasks, newest, identity = [], store.newest(), cache(data.identity)
    known: dict[str, tuple[Engine, str, str]] = {}
    for trial in study.trials():
        if trial.engine not in known:
            engine = engines.broken_or(trial.engine)
            known[trial.engine] = engine, engines.version_of(engine), engines.source_hash(engine)
        engine, version, source = known[trial.engine]
        trial_id = trial.id(version, source, identity(trial.data))
        record = newest.get(trial_id)
        again = record is not None and _deserves_another_try(record, trial, engine, retry)
        tasks.append(Task(trial, engine, trial_id, record, again))
    return tasks


def _deserves_another_try(record: Record, trial: Trial, engine: Engine, retry: Sequence[str]) -> bool:
    """What was refused before it began is asked again: it costs nothing, and what was missing may be there now."""
    if record.unfinished or record.status in retry or ("failed" in retry and record.failed):
        return True
    refused = record.status == "unsupported" and record.phase in (None, "missing")
    return refused and check_preconditions(trial, engine) is None


class RunObserver(Protocol):
    """Whoever watches a run: a live table, plain lines, a notebook. Every method may do nothing."""

    def planned(self, tasks: Sequence[Task]) -> None:
        """Before the first trial: all trials in order, those that are already done included."""

    def waiting(self, sentence: str) -> None:
        """Another run holds the machine."""

    def started(self, task: Task) -> None:
        """A trial's processes are about to start."""

    def update(self, task: Task, state: TrialState) -> None:
        """At least twice a second while a trial runs; must be cheap."""

    def finished(self, task: Task, record: Record) -> None:
        """A record has been stored, or another run has stored it meanwhile."""


class NullObserver:
    """A view that shows nothing, and what other views leave out."""

    def planned(self, tasks: Sequence[Task]) -> None: ...
    def waiting(self, sentence: str) -> None: ...
    def started(self, task: Task) -> None: ...
    def update(self, task: Task, state: TrialState) -> None: ...
    def finished(self, task: Task, record: Record) -> None: ...


class Observers:
    """Several views of one run; each is told everything, in their order."""

    def __init__(self, *views: RunObserver) -> None:
        self._views = views

    def planned(self, tasks: Sequence[Task]) -> None:
        for view in self._views:
            view.planned(tasks)

    def waiting(self, sentence: str) -> None:
        for view in self._views:
            view.waiting(sentence)

    def started(self, task: Task) -> None:
        for view in self._views:
            view.started(task)

    def update(self, task: Task, state: TrialState) -> None:
        for view in self._views:
            view.update(task, state)

    def finished(self, task: Task, record: Record) -> None:
        for view in self._views:
            view.finished(task, record)


NAME = "trainoff.lock"
ASK_S = 1.0


TURN_S = 1.5 * ASK_S  # how long one who has had the machine leaves it to those who wait


class _Held(Protocol):
    def close(self) -> None: ...


@contextmanager
def machine_lock(waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the machine for one trial. While another run holds it, `waiting` is told who.

    On Linux the lock is a name that only one process can listen on: it needs no file that somebody could
    delete, holds for all users, and ends with its holder. Elsewhere it is a file in /tmp.
    Runs that wait take turns. TRAINOFF_LOCK gives it another name, for runs that may go on side by side.
    """
    name = os.environ.get("TRAINOFF_LOCK", NAME)
    take = _listen if sys.platform == "linux" else _lock_file
    while (held := take(name)) is None:
        holder = _who(name)  # to ask is also to say that somebody waits
        waiting(f"waiting for another trainoff run (process {holder}) to finish its trial")
        time.sleep(ASK_S)
    try:
        yield
    finally:
        wanted = _wanted(held)
        held.close()
        if wanted:
            time.sleep(TURN_S)


def _wanted(held: _Held) -> bool:
    """Whether another run has asked who holds the lock: then it is waiting for it."""
    if not isinstance(held, socket.socket):
        return False
    held.setblocking(False)
    with suppress(OSError):
        held.accept()[0].close()
        return True
    return False


def _listen(name: str) -> _Held | None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_address(name))
        listener.listen()
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise TrainoffError(f"the machine's lock cannot be had ({error.strerror}): is a sandbox in the way?") from error


def _address(name: str) -> bytes:
    """In the abstract name space, which has no files."""
    return b"\0" + name.encode()[-100:]


def _who(name: str) -> str:
    """The process that holds the lock, as the kernel knows it."""
    if sys.platform == "linux":
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(ASK_S)
            asking.connect(_address(name))
            pid: int = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            return str(pid)
    return "unknown"


def _lock_file(name: str) -> _Held | None:
    path = Path("/tmp") / Path(name).name
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise TrainoffError(f"{path}: the machine's lock cannot be opened ({error.strerror})") from error
    file = os.fdopen(handle, "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BlockingIOError:
        file.close()
        return None
