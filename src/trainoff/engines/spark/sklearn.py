"""spark-sklearn: scikit-learn's classifiers on the executors, `partial_fit` by `partial_fit`, averaged by rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from trainoff.engines.contract import Job, Knob, Watch
from trainoff.engines.sklearn import Sklearn, check_classes
from trainoff.engines.spark.average import SparkAverage, differs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.engines.spark.desk import Learner
    from trainoff.study import Trial


class SparkSklearn(SparkAverage):
    """MLPClassifier and SGDClassifier on every executor."""

    name = "spark-sklearn"
    about = "scikit-learn's MLPClassifier and SGDClassifier on every executor, weights averaged"
    modes = ("local", "sync", "search")
    modules = (*SparkAverage.modules, "sklearn")
    on_executors = ("numpy", "sklearn")
    knobs: ClassVar[Mapping[str, Knob]] = {
        **SparkAverage.knobs,
        "candidates": Knob(int, 4, "how many learning rates the mode search tries", minimum=1),
    }

    def differs(self, trial: Trial) -> str | None:
        if trial.mode == "search":
            return "a search: every candidate is trained by itself, with a learning rate of its own"
        return Sklearn().differs(trial) or differs(trial)

    def refuses(self, trial: Trial) -> str | None:
        if trial.mode == "search" and trial.params["stop"]:
            return "the mode search trains every candidate to its end; leave `stop` out"
        return super().refuses(trial)

    def open(self, job: Job, watch: Watch) -> None:
        check_classes(job)
        super().open(job, watch)

    def learn(self, job: Job, watch: Watch) -> NDArray[np.float32]:
        if job.mode != "search":
            return super().learn(job, watch)
        from trainoff.engines.spark.search import search

        assert self.session
        return search(self.session, self.maker, self._crew.shipped, job, watch)

    @staticmethod
    def maker(job: Job) -> Learner:
        import sklearn

        from trainoff.engines.sklearn import make_learner
        from trainoff.engines.sklearn.mlp import UNCHECKED
        from trainoff.engines.spark.desk import Silence

        sklearn.set_config(**UNCHECKED)
        learner: Learner = make_learner(job, Silence())
        return learner
