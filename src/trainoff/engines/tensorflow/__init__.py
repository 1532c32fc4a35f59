"""tensorflow: the model in plain TensorFlow, one compiled step per batch.

A step is a `tf.function` for batches of one size: the gradient by TensorFlow's tape, the update by its kernels. Keras
is not used; its momentum contains the rate in the velocity, which is another optimiser.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.engines.contract import DEVICE, Engine, Job, Knob, Refused, Watch, families, refuse_sparse_l2
from trainoff.engines.shared.watch import train_loop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.engines.tensorflow.network import TfLogistic, TfNetwork
    from trainoff.study import Trial

DISTRIBUTIONS = ("tensorflow-cpu", "tensorflow")  # without and with GPU support
PREDICT_ROWS = 1024  # at a time, so that the hidden layers fit into the CPU cache
NO_GPU = (
    'device = "cuda" needs a GPU and a TensorFlow that can use it; '
    "pip install 'tensorflow[and-cuda]' on a machine with an NVIDIA GPU, or use device = \"cpu\""
)


class TensorFlow(Engine):
    """TensorFlow without Keras, one compiled step per batch."""

    name = "tensorflow"
    about = "TensorFlow in float32 on the CPU or one GPU, one process"
    models = families("Network", "Logreg")
    package = "tensorflow-cpu"
    extra = "tensorflow"
    modules = ("tensorflow",)
    knobs: ClassVar[Mapping[str, Knob]] = {
        "device": DEVICE,
        "xla": Knob(bool, False, "whether XLA compiles the step of a network; logreg is left as it is"),
    }

    def version(self) -> str:
        return next(iter(installed().values()), "not installed")

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["device"] == "cuda" and list(installed()) == ["tensorflow-cpu"]:
            return NO_GPU
        return refuse_sparse_l2(trial)

    def open(self, job: Job, watch: Watch) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded
        with watch.phase("import"):
            with without_neighbours():
                import tensorflow as tf
            from trainoff.engines.tensorflow.network import BUILDERS
            from trainoff.models import find_builder

            threads = ceil(job.cores)
            set_threads(tf, threads)
            device = find_device(tf, job.params.get("device", "cpu"))
        watch.count("threads", threads)
        with watch.phase("compile"), tf.device(device):
            self._learner = find_builder(BUILDERS, job.model)(tf, job)
            warm_up(job, self._learner)

    def train(self, job: Job, watch: Watch) -> None:
        learner = self._learner
        train_loop(job, watch, learner.train_step, lambda: [part.numpy() for part in learner.weights])

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        return predict(self._learner.predict, x)


def predict(labels: Callable[[Matrix], NDArray[np.int64]], x: Matrix) -> NDArray[np.int64]:
    """Return the class of each row, some rows at a time."""
    import numpy as np

    found = np.empty(len(x), np.int64)
    for start in range(0, len(x), PREDICT_ROWS):
        found[start : start + PREDICT_ROWS] = labels(x[start : start + PREDICT_ROWS])
    return found


def installed() -> dict[str, str]:
    """Return the installed distributions of TensorFlow and their versions."""
    found = {}
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def set_threads(tf: Any, threads: int) -> None:
    """Run one operation at a time, on a number of threads."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        started = tf.config.threading.get_intra_op_parallelism_threads()
        raise RuntimeError(
            f"TensorFlow has been started with {started} threads in this process and cannot change to {threads}; "
            "train in a new process"
        ) from None


def find_device(tf: Any, name: str) -> str:
    """Return TensorFlow's name of the device. For the CPU, hide the GPUs, so that none is started."""
    if name == "cpu":
        tf.config.set_visible_devices([], "GPU")
        return "/CPU:0"
    if not tf.config.list_physical_devices("GPU"):
        raise Refused(NO_GPU)
    return "/GPU:0"


def warm_up(job: Job, learner: TfNetwork | TfLogistic) -> None:
    """Make a step of each batch size and a prediction, for TensorFlow to compile; then restore the initial state."""
    import numpy as np

    for size in job.order.batch_sizes:
        learner.train_step(1, np.arange(size), 0.0)
    learner.predict(job.data.x_train[:1])
    started = [*job.weights, *(np.zeros(part.shape, np.float32) for part in learner.state[len(job.weights) :])]
    for part, value in zip(learner.state, started, strict=True):
        part.assign(value)


NEIGHBOURS = ("jax", "sklearn")  # imported by TensorFlow if installed, for a converter and for Keras


@contextmanager
def without_neighbours() -> Iterator[None]:
    """Hide other frameworks from TensorFlow, which makes no use of them here and loads in two thirds of the time."""
    hidden = [name for name in NEIGHBOURS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: cannot be imported
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def light_tensorflow() -> None:
    """Make single modules of TensorFlow importable without `import tensorflow`, for processes that need few of them.

    Has no effect if TensorFlow is imported already.
    """
    if "tensorflow" in sys.modules:
        return
    found = importlib.util.find_spec("tensorflow")
    if not found or not found.submodule_search_locations:
        raise ImportError("TensorFlow is not installed")
    package = types.ModuleType("tensorflow")
    package.__path__ = list(found.submodule_search_locations)
    package.__spec__ = found
    sys.modules["tensorflow"] = package
    try:
        importlib.import_module("tensorflow.python.training.server_lib")
    except ImportError:  # another version of TensorFlow with another layout
        for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
            del sys.modules[name]
