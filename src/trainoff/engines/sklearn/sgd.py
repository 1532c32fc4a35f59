"""scikit-learn's SGDClassifier on sparse rows, given our initial weights and our batch order.

It steps after every row, so a batch is given to it with the rate divided by the batch's rows: to the first order
that moves the weights as far as one step on the whole batch. Batches of one row are exactly the reference's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainoff.engines.contract import Job, Phases

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Csr
    from trainoff.models import Weights


class Logistic:
    """An SGDClassifier, one `partial_fit` per batch.

    The bias is the weight of one more column that is always 1, because scikit-learn slows its own intercept down to a
    hundredth where rows are sparse.
    """

    def __init__(self, job: Job, watch: Phases) -> None:
        import numpy as np

        with watch.phase("import"):
            from scipy.sparse import csr_matrix
            from sklearn.linear_model import SGDClassifier
        self._matrix = csr_matrix
        self._told = bool(job.params["stop"])
        self._x, self._y = job.data.x_train, np.asarray(job.data.y_train)
        self._classifier = SGDClassifier(
            loss="log_loss", penalty=None, fit_intercept=False, shuffle=False, learning_rate="constant", eta0=1.0
        )
        with watch.phase("compile"):
            first = np.arange(1)
            self._classifier.partial_fit(self._with_ones(self._x[first]), self._y[first], classes=np.arange(2))
        self.put(job.weights)

    def put(self, weights: Weights) -> None:
        """Go on from these weights."""
        self._classifier.coef_[0, :-1], self._classifier.coef_[0, -1] = weights[0], weights[1][0]

    def _with_ones(self, rows: Csr) -> Any:
        """The rows as scipy has them, each with a last entry of 1 in a column of its own."""
        import numpy as np

        part = rows.compact()
        ends = part.starts[1:]
        columns = np.insert(part.columns, ends, part.width)
        values = np.insert(part.values, ends, 1)
        starts = part.starts + np.arange(len(part.starts))
        return self._matrix((values, columns, starts.astype(np.int32)), shape=(len(part), part.width + 1))

    @property
    def weights(self) -> Weights:
        import numpy as np

        coefficients = self._classifier.coef_[0].astype(np.float32)
        return [coefficients[:-1], coefficients[-1:]]

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float | None:
        """Learn from these rows; returns the loss before, if the trial may stop early by it."""
        batch = self._with_ones(self._x[rows])
        loss = self._loss(batch, self._y[rows]) if self._told else None
        self._classifier.eta0 = rate / len(rows)
        self._classifier.partial_fit(batch, self._y[rows])
        return loss

    def _loss(self, batch: Any, y: NDArray[np.integer[Any]]) -> float:
        import numpy as np

        z = self._classifier.decision_function(batch)
        return float(np.logaddexp(0, np.where(y == 1, -z, z)).mean())

    def labels(self, x: Csr) -> NDArray[np.int64]:
        import numpy as np

        return np.asarray(self._classifier.predict(self._with_ones(x)), np.int64)
