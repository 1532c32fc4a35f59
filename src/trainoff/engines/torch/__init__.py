"""torch: PyTorch on the CPU, one step at a time, or on one GPU, with the whole step captured as a CUDA graph.

The other modules of this package import torch, so only `open` imports them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from trainoff.engines.contract import DEVICE, Engine, Job, Knob, Watch, families, refuse_sparse_l2
from trainoff.engines.shared.watch import train_loop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from trainoff.data import Matrix
    from trainoff.models import Weights
    from trainoff.study import Trial

PREDICT_ROWS = 256  # at a time; they take less memory than the batches of most trainings


class TorchLearner(Protocol):
    """A model in training."""

    state: list[Tensor]  # all that a step changes

    def train_step(self, batch: Any, rate: Any) -> Tensor:
        """Make one step; return the loss before it. The rate is a float, or a vector of one number on the GPU."""

    def predict(self, batch: Any) -> Tensor:
        """Return the class of each row."""

    def weights(self) -> Weights:
        """Return the weights in the order and layout of the model."""


class TorchRows(Protocol):
    """The training rows."""

    def take(self, rows: Tensor) -> Any:
        """Return the batch of these rows, as the learner expects it."""


class Torch(Engine):
    """PyTorch: eager on the CPU, a captured graph on a GPU."""

    name = "torch"
    about = "PyTorch in float32 on the CPU or one GPU, one process"
    models = families("Network", "Logreg")
    package = "torch"
    extra = "torch"
    modules = ("torch",)
    knobs: ClassVar[Mapping[str, Knob]] = {
        "device": DEVICE,
        "precision": Knob(
            str,
            "float32",
            "how a GPU multiplies: tf32 rounds the factors to ten bits and is faster",
            choices=("float32", "tf32"),
        ),
    }

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["precision"] == "tf32" and trial.params["device"] == "cpu":
            return 'precision = "tf32" exists only on a GPU; use device = "cuda", or precision = "float32"'
        return refuse_sparse_l2(trial)

    def open(self, job: Job, watch: Watch) -> None:
        with watch.phase("import"):
            import torch

            from trainoff.engines.torch import cuda_graph, network

            self._device = job.params.get("device", "cpu")
            on_gpu = self._device == "cuda"
            if on_gpu:
                cuda_graph.prepare(tf32=job.params["precision"] == "tf32")
        threads = ceil(job.cores)
        torch.set_num_threads(threads)
        watch.count("threads", threads)
        self._resident = None
        with watch.phase("ship"):
            self._learner = make_learner(job, self._device)
            self._source = network.rows_of(job.data.x_train, job.data.y_train, self._device)
            if on_gpu:
                self._resident = cuda_graph.CudaGraphTraining(job, self._learner, self._source)
                torch.cuda.synchronize()
        with watch.phase("compile"):
            if self._resident:
                self._resident.capture()
            else:
                warm_up(job.order.batch_sizes, self._learner, self._source)

    def train(self, job: Job, watch: Watch) -> None:
        if self._resident:
            self._resident.train(job, watch)
            return
        import torch

        learner, source = self._learner, self._source

        def train_step(step: int, rows: NDArray[np.int64], rate: float) -> float:
            return learner.train_step(source.take(torch.from_numpy(rows)), rate).item()

        train_loop(job, watch, train_step, learner.weights)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        return predict(self._learner, x, self._device)

    def close(self) -> None:
        """Release the weights, the data and the graphs."""
        self.__dict__.clear()


def make_learner(job: Job, device: str) -> TorchLearner:
    """Return what trains the job's model."""
    from trainoff.engines.torch.network import BUILDERS
    from trainoff.models import find_builder

    return find_builder(BUILDERS, job.model)(job, device)


def predict(learner: TorchLearner, x: Matrix, device: str) -> NDArray[np.int64]:
    """Return the class of each row, some rows at a time."""
    import numpy as np
    import torch

    from trainoff.engines.torch import network

    found = np.empty(len(x), np.int64)
    with torch.inference_mode():
        for start in range(0, len(x), PREDICT_ROWS):
            part = x[start : start + PREDICT_ROWS]
            source = network.rows_of(part, np.zeros(len(part), np.int64), device)
            found[start : start + len(part)] = learner.predict(source.all()).cpu().numpy()
    return found


def warm_up(sizes: Iterable[int], learner: TorchLearner, source: TorchRows) -> None:
    """Make a step of each batch size, for torch to prepare its kernels, and restore the initial state."""
    import torch

    before = [part.clone() for part in learner.state]
    for size in sizes:
        learner.train_step(source.take(torch.arange(size)), 0.0)
    for part, value in zip(learner.state, before, strict=True):
        part.copy_(value)
