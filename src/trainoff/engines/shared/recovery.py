"""The driver's view of a training that others begin again after a loss: it follows who leads, and counts the cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainoff.clusters.local import crowded
from trainoff.data.order import spans
from trainoff.engines.checkpoint import Keeper
from trainoff.engines.contract import Job, Watch
from trainoff.engines.losses import Losses
from trainoff.engines.pulse import Lost, Pulse
from trainoff.engines.shared.control_channel import Driver, HungUp, Number
from trainoff.engines.shared.shipping import ring_bytes

READY_S = 300.0  # every process imports a framework, and several may share a core
MOST_RESTARTS = 3  # times that everything is started again


class Course:
    """A line to whoever leads.

    `check` raises if the training cannot go on, and Lost if it can once all is started anew. That is what `restart`
    does, also where all live but nothing goes on.
    """

    def __init__(
        self, job: Job, watch: Watch, host: str, keeper: Keeper, check: Callable[[], None], restart: Callable[[], None]
    ) -> None:
        self._job, self._watch, self._keeper, self._check_others, self._restart = job, watch, keeper, check, restart
        self._line = Driver(host, self._check, explain_s=0.0)
        self._losses, self._pulse = Losses(), Pulse()
        self.over = False  # whether all steps are made

    @property
    def number(self) -> Number:
        """Where the leader calls."""
        return self._line.number

    def wait_until(self, word: str) -> None:
        """Wait until all workers are so far, though they may have to be started again meanwhile."""
        while True:
            try:
                return self._line.wait_for(word, crowded(READY_S, self._job.workers))
            except (HungUp, Lost) as error:
                self._lose(error)

    def run(self) -> None:
        """Follow the training to its end, and tell what it was like."""
        watch, ready = self._watch, True
        while not self.over:
            try:
                if not ready:
                    self.wait_until("ready")
                self._pulse.await_beat()
                self._pulse.beating = True
                _, report = self._line.follow(self._job, watch, self._hear)
                self.over = True
            except (HungUp, Lost) as error:
                self._lose(error)
                ready = False
        self._pulse.beating = False
        for name, value in self._losses.counts(self._rounds()).items():
            watch.count(name, value)
        for name, values in report["breakdowns"].items():
            watch.breakdown(name, values)

    def _rounds(self) -> dict[str, float]:
        job = self._job
        rounds = sum(1 for _ in spans(job.order, job.params.get("tau", 1)))
        return {"rounds": rounds, "least_bytes_per_round": ring_bytes(job, job.workers)}

    def _hear(self, step: int) -> None:
        """So many steps are done."""
        if self._pulse.feel(step):
            self._losses.over(self._pulse.heard)

    def _lose(self, error: HungUp | Lost) -> None:
        """Get ready for the workers to begin again from the last checkpoint; raises if they will not."""
        noticed = time.monotonic()
        self._line.hear_complaints()
        try:
            self._check_others()
        except Lost as lost:
            error = lost
        self._losses.begin(self._pulse.heard)
        self._pulse.beating = False
        self._line.hang_up()
        if isinstance(error, Lost):
            if self._losses.count > MOST_RESTARTS:
                raise error
            self._restart()
        resume = self._keeper.load()
        kept, seen = len(resume.done) if resume else 0, self._job.order.samples_after
        self._losses.redo(self._pulse.step - kept)
        self._watch.lost("worker", max(0, seen(self._pulse.step) - seen(kept)), time.monotonic() - noticed)
        self._pulse.step = kept

    def _check(self) -> None:
        """Raise if a worker made a mistake, if the training cannot go on, or if nothing goes on."""
        self._line.hear_complaints()
        self._check_others()
        self._pulse.check()

    def ask(self, question: Any) -> Any:
        """What the leader answers, after the end."""
        return self._line.ask(question)

    def close(self) -> None:
        """Hang up, which lets the leader end."""
        self._line.close()
