"""The runner: run a study's remaining trials one at a time, under the machine's lock, and store their records.

A `Task` is a trial with its state in the run; a `RunObserver` follows a run (the live table, the progress file).
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
from functools import cache, partial
from math import ceil
from pathlib import Path
from typing import TextIO

from trainoff import data, engines
from trainoff.clusters import Cluster, namespaces
from trainoff.engines import Engine
from trainoff.errors import TrainoffError
from trainoff.records import Record, Store, cannot_write
from trainoff.runner.events import TrialState
from trainoff.runner.job import make_job, model_of, rows_of
from trainoff.runner.machine import ControlKernel
from trainoff.runner.record_builder import bare_record, full_record
from trainoff.runner.status import TrialStatus, check_preconditions
from trainoff.runner.trial_process import ExitInfo, Sandbox, TrialProcess, choose_cpus
from trainoff.study import Study, Trial

HOST_NETWORK = {
    "attach": "the cluster it attaches to is on the host's network",
    "hosts": "its workers are on other hosts, which only the host's network reaches",
}
MOST_PARAMETERS = 10**9


class Runner:
    """Runs tasks one after the other, each in its own process tree, while it holds the machine's lock."""

    def __init__(self, store: Store, *observers: RunObserver) -> None:
        """The observers are called in their order."""
        self._store = store
        self._observers = observers
        self._no_namespaces = namespaces.why_not()
        self._control = ControlKernel()

    def run(self, tasks: list[Task]) -> RunResult:
        """Run the tasks that remain. Ctrl-C ends the running trial, records it as interrupted, and ends the run."""
        self._store.prepare()
        for observer in self._observers:
            observer.planned(tasks)
        self._interrupted = False
        for task in tasks:
            if task.to_run and not self._interrupted:
                try:
                    self._run(task)
                except KeyboardInterrupt:
                    self._interrupted = True
        return RunResult(tasks, self._interrupted)

    def _run(self, task: Task) -> None:
        with machine_lock(self._waiting):
            newest = self._store.latest(task.trial_id)
            if newest and not newest.unfinished and (task.record is None or newest.attempt > task.record.attempt):
                task.record = newest  # another run did the trial while this one waited
            else:
                self._attempt(task, newest.attempt + 1 if newest else 1)
            task.rerun = False
        if task.record:
            for observer in self._observers:
                observer.finished(task, task.record)

    def _waiting(self, sentence: str) -> None:
        for observer in self._observers:
            observer.waiting(sentence)

    def _attempt(self, task: Task, attempt: int) -> None:
        """Run the trial and store its record, however the trial ends."""
        unmet = check_preconditions(task.trial, task.engine)
        record = bare_record(task.trial, task.engine, task.trial_id, attempt, unmet or TrialStatus("ok"))
        try:
            with self._store.stage(task.trial_id) as folder, ExitStack() as uninterrupted:
                if unmet is None:
                    for observer in self._observers:
                        observer.started(task)
                    # Made before the trial, so that its result can be evaluated even if the dataset is removed.
                    job = make_job(task.trial, Cluster(1, folder), folder)
                    exit_info = self._run_trial(task, record, folder, uninterrupted)
                    full_record(record, task.trial, exit_info, job, task.engine.differs(task.trial))
                self._store.commit(record, folder)
                task.record, task.rerun = record, False
        except OSError as error:
            raise TrainoffError(cannot_write(self._store.folder, error)) from error

    def _run_trial(self, task: Task, record: Record, folder: Path, uninterrupted: ExitStack) -> ExitInfo:
        """Run the trial to its end; from then on Ctrl-C waits until its record is stored (`uninterrupted`)."""
        trial = task.trial
        no_network = HOST_NETWORK.get(trial.cluster) or task.engine.outside(trial)
        cpus, record.oversubscribed = choose_cpus(trial)
        no_namespaces = self._no_namespaces
        if trial.cluster == "hosts" and os.geteuid() != 0:
            no_namespaces = no_namespaces or "ssh does not trust the system's files in a user namespace"
        record.isolation = {
            "kind": "process-group" if no_namespaces else "namespaces",
            "own_network": no_namespaces is None and no_network is None,
            "cpus": cpus,
            "threads": ceil(trial.cores),
            "reason": no_namespaces or no_network,
        }
        sandbox = Sandbox(folder, cpus, no_namespaces is None, no_network is None, task.engine.trainer)
        record.noise["control_before"] = self._control.before(cpus[0])
        updates = [partial(observer.update, task) for observer in self._observers]
        with TrialProcess(trial, sandbox, updates, task.give_up) as trial_process:
            exit_info = trial_process.run()
            uninterrupted.enter_context(defer_interrupts())
        record.noise["control_after"] = None if exit_info.stopped else self._control.after(cpus[0])
        self._interrupted = exit_info.stopped
        return exit_info


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Let Ctrl-C and signals that ask to end wait until the block is done, so that no measurement is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [each for each in signals if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, lambda number, _: received.append(number)) for each in handled}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if received:
        raise KeyboardInterrupt


def get_data(study: Study, say: data.Progress | None) -> None:
    """Bring every dataset of the study into the cache, and check that it fits the trials."""
    trials = study.trials()
    loaded = {name: data.get(name, progress=say) for name in dict.fromkeys(trial.data for trial in trials)}
    for trial in trials:
        rows = rows_of(trial, loaded[trial.data])
        parameters = model_of(trial, rows).parameter_count
        if parameters > MOST_PARAMETERS:
            raise TrainoffError(
                f"hidden = {trial.params.get('hidden')} makes a network of {parameters:,} weights; "
                f"at most {MOST_PARAMETERS:,} can be trained here"
            )


@dataclass
class Task:
    """A trial with its state in the run."""

    trial: Trial
    engine: Engine
    trial_id: str
    record: Record | None = None  # of the newest attempt
    rerun: bool = False  # whether to run the trial although there is a record
    give_up: Callable[[TrialState], str | None] | None = None  # may return a reason to end the running trial

    @property
    def to_run(self) -> bool:
        return self.record is None or self.rerun


@dataclass
class RunResult:
    """The tasks of a run after it has ended."""

    tasks: list[Task]
    interrupted: bool = False

    @property
    def records(self) -> list[Record]:
        return [task.record for task in self.tasks if task.record]


def prepare(study: Study, store: Store, retry: Sequence[str] = ()) -> list[Task]:
    """Return the study's trials in the order they run, each with its newest record and whether to run it again."""
    tasks, newest, identity = [], store.newest(), cache(data.identity)
    known: dict[str, tuple[Engine, str, str]] = {}
    for trial in study.trials():
        if trial.engine not in known:
            engine = engines.broken_or(trial.engine)
            known[trial.engine] = engine, engines.version_of(engine), engines.source_hash(engine)
        engine, version, source = known[trial.engine]
        trial_id = trial.id(version, source, identity(trial.data))
        record = newest.get(trial_id)
        rerun = record is not None and _needs_rerun(record, trial, engine, retry)
        tasks.append(Task(trial, engine, trial_id, record, rerun))
    return tasks


def _needs_rerun(record: Record, trial: Trial, engine: Engine, retry: Sequence[str]) -> bool:
    """Return whether to run a trial again; one that could not start is checked again, which costs nothing."""
    if record.unfinished or record.status in retry or ("failed" in retry and record.failed):
        return True
    not_started = record.status == "unsupported" and record.phase in (None, "missing")
    return not_started and check_preconditions(trial, engine) is None


class RunObserver:
    """Follows a run; subclasses show it, such as a live table, plain lines and the progress file."""

    def planned(self, tasks: Sequence[Task]) -> None:
        """Called before the first trial with all tasks in order, including those that are done."""

    def waiting(self, sentence: str) -> None:
        """Called while another run holds the machine's lock."""

    def started(self, task: Task) -> None:
        """Called before a trial's processes start."""

    def update(self, task: Task, state: TrialState) -> None:
        """Called at least twice a second while a trial runs; must be cheap."""

    def finished(self, task: Task, record: Record) -> None:
        """Called when a record has been stored, by this run or by another one meanwhile."""


POLL_S = 1.0
YIELD_S = 1.5 * POLL_S  # how long a run leaves the lock to the others that wait for it


@contextmanager
def machine_lock(waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the machine's lock; while another run holds it, call `waiting` with a sentence.

    On Linux the lock is the name of an abstract socket, on which only one process can listen: there is no file that
    could be deleted, it is the same for all users, and the kernel releases it when the holder dies. Elsewhere it is a
    file in /tmp. Runs that wait take turns. Runs with different names in TRAINOFF_LOCK may run side by side.
    """
    name = os.environ.get("TRAINOFF_LOCK", "trainoff.lock")
    acquire = _bind_socket if sys.platform == "linux" else _lock_file
    while (lock := acquire(name)) is None:
        holder = _holder(name)  # this connection also shows the holder that a run waits
        waiting(f"waiting for another trainoff run (process {holder}) to finish its trial")
        time.sleep(POLL_S)
    try:
        yield
    finally:
        contended = _is_contended(lock)
        lock.close()
        if contended:
            time.sleep(YIELD_S)


def _is_contended(lock: socket.socket | TextIO) -> bool:
    """Return whether another run waits for the lock: it has connected to ask who holds it."""
    if not isinstance(lock, socket.socket):
        return False
    lock.setblocking(False)
    with suppress(OSError):
        lock.accept()[0].close()
        return True
    return False


def _bind_socket(name: str) -> socket.socket | None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_address(name))
        listener.listen()
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        why = f"the machine's lock cannot be acquired ({error.strerror}); does a sandbox forbid it?"
        raise TrainoffError(why) from error


def _address(name: str) -> bytes:
    """Return a name in the abstract name space, which has no files."""
    return b"\0" + name.encode()[-100:]


def _holder(name: str) -> str:
    """Return the process that holds the lock, as reported by the kernel."""
    if sys.platform == "linux":
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(POLL_S)
            client.connect(_address(name))
            pid: int = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            return str(pid)
    return "unknown"


def _lock_file(name: str) -> TextIO | None:
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
