"""sklearn: scikit-learn's own classifiers, given our initial weights and our batch order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainoff.engines.contract import Engine, Job, Phases, Refused, Watch
from trainoff.engines.shared.watch import walk
from trainoff.engines.sklearn.learners import UNCHECKED, Logistic, Perceptron

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.study import Trial


class Sklearn(Engine):
    """scikit-learn's MLPClassifier and SGDClassifier, one `partial_fit` per batch."""

    name = "sklearn"
    about = "scikit-learn's MLPClassifier and SGDClassifier, one process"
    models = frozenset({"mlp", "logreg"})
    package = "scikit-learn"
    extra = "sklearn"
    modules = ("sklearn",)

    def refuses(self, trial: Trial) -> str | None:
        return self.refuses_l2(trial)

    def differs(self, trial: Trial) -> str | None:
        if trial.model == "logreg" and trial.params["batch_size"] > 1:
            return "SGDClassifier takes a small step after every row, not one step per batch"
        return None

    def open(self, job: Job, watch: Watch) -> None:
        check_classes(job)
        self._learner = make_learner(job, watch)

    def train(self, job: Job, watch: Watch) -> None:
        import numpy as np
        import sklearn

        with sklearn.config_context(**UNCHECKED), np.errstate(over="ignore", invalid="ignore"):
            walk(job, watch, self._learner.step, lambda: self._learner.weights)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        return self._learner.labels(x)


def check_classes(job: Job) -> None:
    """Refuse data for which scikit-learn has another network than the model."""
    if job.model.kind == "mlp" and job.model.classes < 3:
        raise Refused(
            "scikit-learn trains two classes with one logistic output where the model has a softmax; "
            "use another engine, or data with at least three classes"
        )


def make_learner(job: Job, watch: Phases) -> Perceptron | Logistic:
    """What learns the job's model."""
    return Logistic(job, watch) if job.model.kind == "logreg" else Perceptron(job, watch)
