"""numpy: the models in plain numpy and float32, as fast as the matrix products underneath.

Every array is allocated once and every step works in place, so that nearly all the time goes into the
products of the BLAS, which uses the cores it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trainoff.engines.contract import Engine, Job, Watch
from trainoff.engines.shared.watch import walk

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.study import Trial


class Numpy(Engine):
    """Plain numpy: the least that training needs, and the yardstick for the others."""

    name = "numpy"
    about = "plain numpy in float32, one process"
    models = frozenset({"mlp", "logreg"})
    package = "numpy"
    modules = ("numpy",)

    def optimizers(self, model: str) -> Sequence[str]:
        return (*super().optimizers(model), "l-bfgs") if model == "mlp" else super().optimizers(model)

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        if values["optimizer"] != "l-bfgs":
            return values
        return {**values, "schedule": "constant", "learning_rate": 1.0}  # a line search finds its own

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
                import scipy.optimize  # noqa: F401  # so that its time is booked here and not on training
        self._learner = make_learner(job)

    def train(self, job: Job, watch: Watch) -> None:
        import numpy as np

        learner = self._learner
        with np.errstate(over="ignore", invalid="ignore"):  # the watch notices a loss that is no number
            if job.params["optimizer"] == "l-bfgs":
                from trainoff.engines.numpy.learners import minimize

                minimize(learner, job, watch)
            else:
                walk(job, watch, learner.step, lambda: learner.weights)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._learner.labels(x)
        return found


def make_learner(job: Job) -> Any:
    """What learns the job's model: it makes a `step` on some rows, and has `weights` and `labels`."""
    if job.model.kind == "logreg":
        from trainoff.engines.numpy.learners import Logistic

        return Logistic(job)
    from trainoff.engines.numpy.learners import Perceptron

    return Perceptron(job)
