"""numpy: the models in plain numpy and float32, as fast as the matrix products underneath.

Every array is allocated once and every step works in place, so that nearly all the time goes into the
products of the BLAS, which uses the cores it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from trainoff.engines.contract import Engine, Job, Watch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.models import Weights
    from trainoff.study import Trial


class Learner(Protocol):
    """A model on its way: it makes steps, and tells what it has learnt."""

    @property
    def weights(self) -> Weights: ...

    def step(self, rows: NDArray[np.int64], rate: float) -> float:
        """Learn from these rows of the training set; returns the loss before."""

    def labels(self, x: Matrix) -> NDArray[np.int64]:
        """The class of each row."""


class Numpy(Engine):
    """Plain numpy: the least that training needs, and the yardstick for the others."""

    name = "numpy"
    about = "plain numpy in float32, one process"
    models = frozenset({"mlp", "logreg"})
    package = "numpy"
    modules = ("numpy",)

    def optimizers(self, model: str) -> Sequence[str]:
        return (*super().optimizers(model), "l-bfgs") if model == "mlp" else super().optimizers(model)

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["optimizer"] == "l-bfgs" and find_spec("scipy") is None:
            return "numpy takes l-bfgs from scipy, which is not installed; pip install 'trainoff[numpy]'"
        return self.refuses_l2(trial)

    def differs(self, trial: Trial) -> str | None:
        if trial.params["optimizer"] == "l-bfgs":
            return "L-BFGS of scipy, every iteration on all rows"
        return None

    def open(self, job: Job, watch: Watch) -> None:
        if job.params["optimizer"] == "l-bfgs":
            with watch.phase("import"):
                import scipy.optimize  # noqa: F401
        self._learner = make_learner(job)

    def train(self, job: Job, watch: Watch) -> None:
        import numpy as np

        with np.errstate(over="ignore", invalid="ignore"):  # the watch notices a loss that is no number
            if job.params["optimizer"] == "l-bfgs":
                from trainoff.engines.numpy.lbfgs import minimize

                minimize(self._learner.network, job, watch)  # type: ignore[attr-defined]
            else:
                train_by_steps(self._learner, job, watch)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        return self._learner.labels(x)


def make_learner(job: Job) -> Learner:
    """What learns the job's model."""
    if job.model.kind == "logreg":
        from trainoff.engines.numpy.sparse import Logistic

        return Logistic(job)
    from trainoff.engines.numpy.dense import Perceptron

    return Perceptron(job)


def train_by_steps(learner: Learner, job: Job, watch: Watch) -> None:
    """One step per batch."""
    for step, rows in job.order.batches():
        watch.progress(step, learner.step(rows, float(job.rates[step - 1])))
        if watch.due():
            watch.snapshot(job.order.samples_after(step), learner.weights)
        if watch.should_stop:
            break
