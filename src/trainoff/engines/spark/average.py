"""spark-average: SparkNet's algorithm. Every worker makes tau steps of its own, then their weights are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.engines.contract import Job, Knob, Watch
from trainoff.engines.spark.base import SparkEngine
from trainoff.engines.spark.fit import fit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.engines.spark.desk import Learner
    from trainoff.study import Trial

TAU = Knob(int, 10, "steps that every worker makes before the weights are averaged; 1 in the mode sync", minimum=1)


class SparkAverage(SparkEngine):
    """Plain numpy on every executor, averaged by the driver."""

    name = "spark-average"
    about = "SparkNet: tau local steps in numpy on every executor, then an average"
    models = frozenset({"mlp", "logreg"})
    modes: ClassVar[tuple[str, ...]] = ("local", "sync")
    knobs: ClassVar[Mapping[str, Knob]] = {"tau": TAU}

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "tau": 1} if values["mode"] == "sync" else values

    def differs(self, trial: Trial) -> str | None:
        return differs(trial)

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        from trainoff.engines.spark.rounds import Crew

        assert self.session
        with watch.phase("ship"), self.session.failures():
            self._crew = Crew(self.session, job, self.maker)
            self._crew.ship()

    @staticmethod
    def maker(job: Job) -> Learner:
        """What learns on an executor."""
        from trainoff.engines.numpy import make_learner

        learner: Learner = make_learner(job)
        return learner

    def train(self, job: Job, watch: Watch) -> None:
        from trainoff.models import unflatten

        assert self.session
        with self.session.failures():
            self._trained = job, unflatten(job.model, self.learn(job, watch))
            self.session.tell(watch)

    def learn(self, job: Job, watch: Watch) -> NDArray[np.float32]:
        """Train; returns the weights as one vector."""
        from trainoff.engines.spark.rounds import train

        return train(self._crew, job, watch, job.params["tau"])

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        job, weights = self._trained
        learner = self.maker(job)
        learner.put(weights)
        return learner.labels(x)


def differs(trial: Trial) -> str | None:
    """Why averaging weights is not what the reference does, or None where it is."""
    if fit(trial).count == 1:
        return None
    if trial.params["tau"] > 1:
        return f"every worker makes {trial.params['tau']} steps of its own before the weights are averaged"
    if trial.params["optimizer"] != "sgd":
        return f"every worker keeps the memory of {trial.params['optimizer']} for its own gradients"
    return None
