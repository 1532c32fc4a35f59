"""The conductor: runs what is missing of a study, one trial at a time, and files the records."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainoff import data
from trainoff.clusters import Processes, namespaces
from trainoff.conduct.refusal import cannot
from trainoff.conduct.task import Outcome, Task
from trainoff.conduct.view import View
from trainoff.errors import TrainoffError
from trainoff.records import Record, Store, cannot_write
from trainoff.runner.control_kernel import Control
from trainoff.runner.job import make_job, model_of, rows_of
from trainoff.runner.lock import machine_lock
from trainoff.runner.record_builder import Identity, bare_record, full_record
from trainoff.runner.status import Verdict
from trainoff.runner.trial_main import threads
from trainoff.runner.trial_process import Ending, Performance, Stage, choose_cpus
from trainoff.study import Study, Trial

HOST_NETWORK = {
    "attach": "the cluster it attaches to is on the host's network",
    "hosts": "its workers are on other hosts, which only the host's network reaches",
}
MOST_PARAMETERS = 10**9


class Conductor:
    """Runs tasks one after the other, each in its own process tree, holding the machine's lock."""

    def __init__(self, store: Store, view: View) -> None:
        self._store = store
        self._view = view
        self._why_not = namespaces.why_not()
        self._control = Control()

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
        verdict = cannot(task.trial, task.engine)
        record = bare_record(task.trial, task.engine, identity, verdict or Verdict("ok"))
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

    def _perform(self, task: Task, record: Record, folder: Path, measured: ExitStack) -> Ending:
        """Run the trial on its stage, to whatever end; from then on, what was measured is not lost to Ctrl-C."""
        trial = task.trial
        outside = HOST_NETWORK.get(trial.cluster) or task.engine.outside(trial)
        cpus, record.oversubscribed = choose_cpus(trial)
        why_not = self._why_not or _no_namespaces(trial)
        stage = Stage(folder, cpus, why_not is None, outside is None, task.engine.trainer)
        record.isolation = {
            "kind": "process-group" if why_not else "namespaces",
            "own_network": why_not is None and outside is None,
            "cpus": cpus,
            "threads": threads(trial.cores),
            "reason": why_not or outside,
        }
        record.noise["control_before"] = self._control.before(_cpu(record))
        with Performance(trial, stage, lambda story: self._view.update(task, story), task.give_up) as performance:
            ending = performance.run()
            measured.enter_context(finish_first())
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
def finish_first() -> Iterator[None]:
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
