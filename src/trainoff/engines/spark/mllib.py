"""spark-mllib: Spark's own MultilayerPerceptronClassifier and LogisticRegression.

Every iteration computes on all rows, in float64, and the perceptron has only the sigmoid: another algorithm for the
same problem, started from the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Job, Knob, Watch, families
from trainoff.engines.shared.recovery import run_with_polling
from trainoff.engines.spark import SparkEngine, refuses_executors
from trainoff.models import LAYERED, Logreg, Weights, find_builder, flatten, unflatten

if TYPE_CHECKING:
    from trainoff.data import Matrix
    from trainoff.engines.spark.session import SparkConnection
    from trainoff.study import Trial

ALL_ROWS = 10**9  # a batch that holds every row


class SparkMllib(SparkEngine):
    """MLlib: every iteration is a Spark job over all rows."""

    name = "spark-mllib"
    about = "Spark MLlib's perceptron (L-BFGS or gradient descent, sigmoid) and logistic regression"
    models = families("Mlp", "Logreg")
    modes = ("sync",)
    whole_executors = False
    on_executors = ()
    knobs: ClassVar[Mapping[str, Knob]] = {
        "max_iter": Knob(int, 100, "maximum number of iterations", minimum=1),
        "solver": Knob(str, "l-bfgs", "the perceptron's solver; gd steps by learning_rate", choices=("l-bfgs", "gd")),
        "block_size": Knob(int, 128, "rows that are multiplied as one matrix", minimum=1),
        "tol": Knob(float, 1e-6, "tolerance: training ends when an iteration improves the loss by less", minimum=0),
        "chunk": Knob(int, 0, "iterations between two snapshots; each restarts L-BFGS. 0: one at the end", minimum=0),
    }

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        lbfgs = values["solver"] == "l-bfgs" or "activation" not in values
        settled = {
            **values,
            "optimizer": "l-bfgs" if lbfgs else "sgd",
            "schedule": "constant",
            "batch_size": ALL_ROWS,
            "epochs": values["max_iter"],
            "stop": None,
        }
        if lbfgs:
            settled["learning_rate"] = 1.0  # a line search determines it
        if "activation" in values:
            settled["activation"] = "sigmoid"
        else:  # these belong to the perceptron
            settled |= {name: self.knobs[name].default for name in ("solver", "block_size", "chunk")}
        return settled

    def optimizers(self, model: str) -> Sequence[str]:
        return ("l-bfgs", "sgd")

    def refuses(self, trial: Trial) -> str | None:
        if trial.model in LAYERED and trial.params["l2"]:
            return "MLlib's perceptron has no l2"
        return refuses_executors(trial)

    def differs(self, trial: Trial) -> str | None:
        if trial.model not in LAYERED:
            return "MLlib: L-BFGS, every iteration on all rows"
        how = "L-BFGS" if trial.params["solver"] == "l-bfgs" else "gradient descent"
        return f"MLlib: {how}, every iteration on all rows, sigmoid"

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        from trainoff.engines.spark.session import frame

        watch.note("blas", self._blas())
        with watch.phase("ship"), self.session.failures():
            self._rows = frame(self.session, job.data.x_train, job.data.y_train).cache()
            self._rows.count()
            self.session.rows_per_task = job.order.rows // self.session.slots
        with watch.phase("compile"), self.session.failures():
            # A block of rows on every core, without effect: the JVMs load and compile what training runs.
            share = min(1.0, job.params["block_size"] * self.session.slots / job.order.rows)
            estimator(job, 1).fit(self._rows.sample(False, share, seed=0))

    def _blas(self) -> str:
        """Return the class that multiplies matrices: in plain Java, with Java's vectors, or by a native library."""
        blas = getattr(getattr(self.session.context._jvm.org.apache.spark.ml.linalg, "BLAS$"), "MODULE$")
        name = str(blas.nativeBLAS().getClass().getName())
        return f"{name} (the driver's)" if self.session.attached else name

    def train(self, job: Job, watch: Watch) -> None:
        runner = FitRunner(job, watch, self.session)
        fit = find_builder({"Mlp": fit_perceptron, "Logreg": fit_logistic}, job.model)
        with self.session.failures():
            self._model = fit(runner, self._rows)
            watch.count("iterations", runner.iterations)
            watch.count("evaluations", runner.evaluations)
            self.session.report(watch)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        from trainoff.engines.spark.session import frame

        with self.session.failures():
            rows = frame(self.session, x, np.arange(len(x)))  # row numbers as labels: Spark need not keep the order
            table = self._model.transform(rows).select("label", "prediction").toArrow()
        predictions = np.empty(len(x), np.int64)
        predictions[table["label"].to_numpy().astype(np.int64)] = table["prediction"].to_numpy()
        return predictions


class FitRunner:
    """Runs MLlib's fits one after the other, and reports their iterations to the watch."""

    def __init__(self, job: Job, watch: Watch, session: SparkConnection) -> None:
        self.job, self._watch, self._session = job, watch, session
        self._store = session.context._jsc.sc().statusStore()
        self._start, self._paused = time.time(), 0.0
        self.iterations = self._jobs_before = 0
        self._jobs_before = self.evaluations

    @property
    def evaluations(self) -> int:
        """How often the loss was evaluated on all rows, line searches included: once by each Spark job."""
        return int(self._store.jobsList(None).size()) - self._jobs_before

    def fit(self, estimator: Any, rows: Any) -> Any:
        """Fit, and report the progress as long as Spark is alive."""

        def poll() -> None:
            if self._session.alive:
                self._watch.progress(self.iterations, None, self.evaluations * self.job.order.rows)

        return run_with_polling(lambda: estimator.fit(rows), poll)

    def report(self, history: Sequence[float], start: float, end: float, weights: Weights) -> None:
        """Report a finished fit to the watch: its losses, and its weights as a snapshot."""
        interval = (end - start) / max(len(history), 1)
        for index, loss in enumerate(history):
            seconds = start - self._start - self._paused + interval * (index + 1)
            rows = (self.iterations + index + 1) * self.job.order.rows
            self._watch.objective(self.iterations + index, rows, seconds, float(loss))
        self.iterations += len(history) - 1  # the first loss is that before the first iteration
        seen = self.evaluations * self.job.order.rows
        self._watch.progress(self.iterations, float(history[-1]) if history else None, seen)
        paused = time.time()
        self._watch.due()  # a snapshot is taken in any case
        self._watch.snapshot(seen, weights)
        self._paused += time.time() - paused


def estimator(job: Job, iterations: int, weights: NDArray[np.float64] | None = None) -> Any:
    """Return MLlib's estimator for a number of iterations from some weights; the initial ones by default."""
    from pyspark.ml.classification import LogisticRegression, MultilayerPerceptronClassifier
    from pyspark.ml.linalg import Vectors

    params = job.params
    if isinstance(job.model, Logreg):  # it starts from zero, as the other engines do, except for the bias
        return LogisticRegression(
            maxIter=iterations, tol=params["tol"], regParam=params["l2"], standardization=False, family="binomial"
        )
    start = flatten(job.weights).astype(float) if weights is None else weights
    return MultilayerPerceptronClassifier(
        layers=list(job.model.sizes),
        maxIter=iterations,
        tol=params["tol"],
        blockSize=params["block_size"],
        solver=params["solver"],
        stepSize=params["learning_rate"],
        initialWeights=Vectors.dense(start),  # per layer the matrix, inputs by outputs, then the biases
    )


def fit_perceptron(runner: FitRunner, rows: Any) -> Any:
    """Fit the network in chunks of iterations, or all at once; returns MLlib's model."""
    job, params = runner.job, runner.job.params
    weights, model, finished = None, None, False
    while not finished:
        before = runner.iterations
        iterations = min(params["chunk"] or params["max_iter"], params["max_iter"] - before)
        start = time.time()
        model = runner.fit(estimator(job, iterations, weights), rows)
        end, weights = time.time(), model.weights.toArray()
        history = list(model.summary().objectiveHistory)
        finished = len(history) - 1 < iterations or before + iterations >= params["max_iter"]
        runner.report(history, start, end, unflatten(job.model, weights))
    return model


def fit_logistic(runner: FitRunner, rows: Any) -> Any:
    """Fit the logistic regression; returns MLlib's model."""
    start = time.time()
    model = runner.fit(estimator(runner.job, runner.job.params["max_iter"]), rows)
    weights = [model.coefficients.toArray(), np.array([model.intercept])]
    runner.report(list(model.summary.objectiveHistory), start, time.time(), weights)
    return model
