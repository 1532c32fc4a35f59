"""sklearn: scikit-learn's classifiers, given the trial's initial weights and batch order."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Engine, Job, Phases, Refused, Watch, families, refuse_sparse_l2
from trainoff.engines.shared.shipping import expand, gather_rows
from trainoff.engines.shared.watch import train_loop
from trainoff.models import BETA1, BETA2, EPSILON, FAMILIES, Weights, find_builder

if TYPE_CHECKING:
    from trainoff.data import Csr, Matrix
    from trainoff.study import Trial

ACTIVATIONS = {"relu": "relu", "sigmoid": "logistic", "tanh": "tanh"}  # our names: scikit-learn's

# scikit-learn's options to check neither every batch for NaN nor the parameters at every call.
UNCHECKED = {"assume_finite": True, "skip_parameter_validation": True}


class SklearnPerceptron:
    """An MLPClassifier, one `partial_fit` per batch."""

    def __init__(self, job: Job, watch: Phases) -> None:
        with watch.phase("import"):
            from sklearn.neural_network import MLPClassifier
        self._job = job
        self._classifier = MLPClassifier(**arguments(job))
        self._batch = np.empty((min(job.order.batch_size, job.order.rows), job.model.sizes[0]), np.float32)
        self._x, self._y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)
        with watch.phase("compile"):
            self._allocate(job)
        self.put(job.weights)

    def _allocate(self, job: Job) -> None:
        """Fit once, for scikit-learn to allocate its weights, and discard the optimiser's state."""
        import sklearn

        rows = len(self._batch)
        classes = np.arange(job.model.sizes[-1])
        with sklearn.config_context(**UNCHECKED):
            set_rows(self._classifier, rows, job.model.l2)
            self._classifier.partial_fit(expand(self._x[:rows]), self._y[:rows], classes=classes)
        del self._classifier._optimizer  # the next fit makes a new one

    @property
    def weights(self) -> Weights:
        arrays = self._arrays()
        return [arrays[parameter.name].copy() for parameter in self._job.model.parameters]

    def put(self, weights: Weights) -> None:
        """Set the weights."""
        arrays = self._arrays()
        for name, part in self._job.model.by_name(weights).items():
            arrays[name][...] = part

    def _arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the classifier's arrays by the names of the model's parameters."""
        layers, classifier = self._job.model.layers, self._classifier
        weights = {f"{layer.name}.weight": part for layer, part in zip(layers, classifier.coefs_, strict=True)}
        biases = {f"{layer.name}.bias": part for layer, part in zip(layers, classifier.intercepts_, strict=True)}
        return weights | biases

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float | None:
        """Make a step on these rows; return the loss before it."""
        batch = self._batch[: len(rows)]
        gather_rows(self._x, rows, batch)
        set_rows(self._classifier, len(rows), self._job.model.l2)
        set_step(self._classifier, self._job, step)
        return fit(self._classifier, batch, self._y[rows])

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.asarray(self._classifier.predict(x), np.int64)


def arguments(job: Job) -> dict[str, Any]:
    """Return MLPClassifier's arguments; the rate and epsilon are those of the first step."""
    optimizer = job.params["optimizer"]
    return {
        "hidden_layer_sizes": job.model.sizes[1:-1],
        "activation": ACTIVATIONS[job.model.activation],
        "solver": "adam" if optimizer == "adam" else "sgd",
        "learning_rate_init": float(job.rates[0]),
        "momentum": momentum(job, 1),
        "nesterovs_momentum": False,
        "beta_1": BETA1,
        "beta_2": BETA2,
        "epsilon": epsilon(1),
        "shuffle": False,
        # Only for the weights that are discarded; a seed would make a new generator at every step.
        "random_state": np.random.RandomState(0),
    }


def set_rows(classifier: Any, rows: int, l2: float) -> None:
    """Prepare for a batch of some rows; scikit-learn divides its alpha by them, the reference does not."""
    classifier.batch_size = rows
    classifier.alpha = l2 * rows


def set_step(classifier: Any, job: Job, step: int) -> None:
    """Set the rate of this step in scikit-learn's optimiser, which the first fit makes."""
    rate = float(job.rates[step - 1])
    optimizer = getattr(classifier, "_optimizer", None)
    if optimizer is None:
        classifier.learning_rate_init, classifier.momentum = rate, momentum(job, step)
        classifier.epsilon = epsilon(step)
    elif job.params["optimizer"] == "adam":
        optimizer.learning_rate_init = rate
        optimizer.epsilon = epsilon(step)
    else:
        optimizer.learning_rate = rate
        optimizer.momentum = momentum(job, step)


def momentum(job: Job, step: int) -> float:
    """Return the momentum of a step, which grows with the rate: scikit-learn's velocity contains the rate."""
    if job.params["optimizer"] != "momentum":
        return 0.0
    previous = job.rates[max(step - 2, 0)]
    return float(job.params["momentum"] * job.rates[step - 1] / previous)


def epsilon(step: int) -> float:
    """Return Adam's epsilon of a step; scikit-learn adds it before it corrects the bias of the second moment."""
    return EPSILON * sqrt(1 - BETA2**step)


def fit(classifier: Any, x: NDArray[np.float32], y: NDArray[np.integer[Any]]) -> float:
    """Make one step; return the loss, or NaN if the weights are no longer finite."""
    try:
        classifier.partial_fit(x, y)
    except ValueError:
        if all(np.isfinite(part).all() for part in (*classifier.coefs_, *classifier.intercepts_)):
            raise
        return nan
    return float(classifier.loss_)


class SklearnLogistic:
    """An SGDClassifier, one `partial_fit` per batch.

    The bias is the weight of an additional column of ones, because scikit-learn divides the steps of its intercept by
    a hundred if rows are sparse.
    """

    def __init__(self, job: Job, watch: Phases) -> None:
        with watch.phase("import"):
            from scipy.sparse import csr_matrix
            from sklearn.linear_model import SGDClassifier
        self._matrix = csr_matrix
        self._needs_loss = bool(job.params["stop"])
        self._x, self._y = job.data.x_train, np.asarray(job.data.y_train)
        self._classifier = SGDClassifier(
            loss="log_loss", penalty=None, fit_intercept=False, shuffle=False, learning_rate="constant", eta0=1.0
        )
        with watch.phase("compile"):
            first = np.arange(1)
            self._classifier.partial_fit(self._with_ones(self._x[first]), self._y[first], classes=np.arange(2))
        self.put(job.weights)

    def put(self, weights: Weights) -> None:
        """Set the weights."""
        self._classifier.coef_[0, :-1], (self._classifier.coef_[0, -1],) = weights

    def _with_ones(self, rows: Csr) -> Any:
        """Return the rows as a scipy matrix with an additional column of ones."""
        part = rows.compact()
        ends = part.starts[1:]
        columns = np.insert(part.columns, ends, part.width)
        values = np.insert(part.values, ends, 1)
        starts = part.starts + np.arange(len(part.starts))
        return self._matrix((values, columns, starts.astype(np.int32)), shape=(len(part), part.width + 1))

    @property
    def weights(self) -> Weights:
        coefficients = self._classifier.coef_[0].astype(np.float32)
        return [coefficients[:-1], coefficients[-1:]]

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float | None:
        """Make a step on these rows; return the loss before it, if the trial may stop early by it."""
        batch = self._with_ones(self._x[rows])
        loss = self._loss(batch, self._y[rows]) if self._needs_loss else None
        self._classifier.eta0 = rate / len(rows)
        self._classifier.partial_fit(batch, self._y[rows])
        return loss

    def _loss(self, batch: Any, y: NDArray[np.integer[Any]]) -> float:
        z = self._classifier.decision_function(batch)
        return float(np.logaddexp(0, np.where(y == 1, -z, z)).mean())

    def predict(self, x: Csr) -> NDArray[np.int64]:
        return np.asarray(self._classifier.predict(self._with_ones(x)), np.int64)


BUILDERS: Mapping[str, Any] = {"Mlp": SklearnPerceptron, "Logreg": SklearnLogistic}


def check_classes(job: Job) -> None:
    """Refuse data for which scikit-learn's network differs from the model."""
    if not job.model.sparse and job.model.classes < 3:
        raise Refused(
            "scikit-learn trains two classes with one logistic output where the model has a softmax; "
            "use another engine, or data with at least three classes"
        )


def make_learner(job: Job, watch: Phases) -> SklearnPerceptron | SklearnLogistic:
    """Return what trains the job's model."""
    learner: SklearnPerceptron | SklearnLogistic = find_builder(BUILDERS, job.model)(job, watch)
    return learner


class Sklearn(Engine):
    """scikit-learn's MLPClassifier and SGDClassifier, one `partial_fit` per batch."""

    name = "sklearn"
    about = "scikit-learn's MLPClassifier and SGDClassifier, one process"
    models = families(*BUILDERS)
    package = "scikit-learn"
    extra = "sklearn"
    modules = ("sklearn",)

    def refuses(self, trial: Trial) -> str | None:
        return refuse_sparse_l2(trial)

    def differs(self, trial: Trial) -> str | None:
        if FAMILIES[trial.model].sparse and trial.params["batch_size"] > 1:
            return "SGDClassifier takes a small step after every row, not one step per batch"
        return None

    def open(self, job: Job, watch: Watch) -> None:
        check_classes(job)
        self._learner = make_learner(job, watch)

    def train(self, job: Job, watch: Watch) -> None:
        import sklearn

        with sklearn.config_context(**UNCHECKED), np.errstate(over="ignore", invalid="ignore"):
            train_loop(job, watch, self._learner.step, lambda: self._learner.weights)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        return self._learner.predict(x)
