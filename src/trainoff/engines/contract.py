"""The engine contract: what a training system must have to take part in a study, and what it is given.

An engine is one class. It must have `name`, `train` and `predict`; everything else has a default. `Job` is what it
trains, `Watch` is how it reports. docs/add-an-engine.md walks through one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.clusters import Cluster
    from trainoff.data import Data, Matrix, Order
    from trainoff.engines.shared.snapshots import SnapshotSchedule
    from trainoff.models import NamedWeights, Weights
    from trainoff.study import Trial


@dataclass(frozen=True)
class Missing:
    """Something this machine lacks for an engine, and the one command that installs it."""

    what: str
    command: str

    def __str__(self) -> str:
        return f"needs {self.what}; {self.command}"


class Refused(Exception):
    """Raised by `open` where only the data shows that the engine cannot run the trial; the record is `unsupported`."""


class WorkerFailed(Exception):
    """Raised where a worker failed and left a traceback, which says more than the driver's.

    The last line of `said` becomes the record's reason; `log` is the end of the worker's log.
    """

    def __init__(self, role: str, said: str, log: str = "") -> None:
        super().__init__(f"{role}: {said}")
        self.role, self.said, self.log = role, said, log


@dataclass(frozen=True)
class Knob:
    """A parameter that only some engines have. `kind` is the type of a value; `choices` or `minimum` narrow it."""

    kind: type
    default: Any
    about: str
    choices: tuple[Any, ...] = ()
    minimum: float | None = None


DEVICE = Knob(str, "cpu", "where it trains: on the CPU or on one GPU", choices=("cpu", "cuda"))


@dataclass
class Job:
    """What to train, the same for all engines."""

    data: Data
    model: Any  # a Model of trainoff.models
    weights: NamedWeights  # where training starts, float32; copy before changing
    order: Order  # the rows of each batch
    rates: NDArray[np.float64]  # the learning rate of each step; rates[step - 1]
    params: Mapping[str, Any]  # every hyper-parameter and knob, resolved
    mode: str
    workers: int
    cores: float  # per worker
    memory_gb: float | None  # per worker
    cluster: Cluster
    folder: Path  # scratch space, deleted after the trial


class Phases(Protocol):
    """The part of a watch that keeps the time of phases."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count the time inside the `with` as a phase: import, cluster_start, data_load, ship, compile, ..."""


class Watch(Phases, Protocol):
    """The engine's only channel to the harness: it keeps time, stores snapshots and says when to stop."""

    should_stop: bool  # true after the step that should be the last; changes only inside `progress`

    @property
    def snapshot_schedule(self) -> SnapshotSchedule:
        """When snapshots are due, for workers in other processes, which cannot call `due`."""

    def progress(self, step: int, loss: float | None = None, samples_seen: int | None = None) -> None:
        """Report that `step` updates are done. Cheap enough to call after every step."""

    def due(self, settle: Callable[[], object] | None = None) -> bool:
        """Return whether to call `snapshot` now. If so, the clock stands still until it is called.

        Where steps are asynchronous, as on a GPU, `settle` waits for them: it is called first, on the clock, and only
        if a snapshot is due.
        """

    def snapshot(self, samples_seen: int, weights: Weights) -> None:
        """Store the weights, which are copied at once. The time this takes does not count as training."""

    def objective(self, step: int, samples_seen: int, train_s: float, loss: float) -> None:
        """Report the training loss of an earlier step, for systems that return their losses at the end."""

    def lost(self, who: str, redone: int = 0, ago_s: float = 0.0) -> None:
        """Report that a worker was lost `ago_s` seconds ago, and how many samples must be seen again."""

    def count(self, name: str, value: float) -> None:
        """Put a figure into the record, under `counts`."""

    def breakdown(self, name: str, figures: Mapping[str, float]) -> None:
        """Put a figure with parts into the record, under `breakdowns`: seconds by worker, updates by staleness."""

    def task(self, worker: str, start_s: float, end_s: float) -> None:
        """Put a task into the record's timeline, with its start and end in seconds since training began."""

    def page(self, name: str, host: str, port: int) -> None:
        """Offer a page to open while training runs, such as a dashboard; any local user may open it."""

    def note(self, name: str, text: str) -> None:
        """Put a fact in words into the record, under `notes`, such as the BLAS library in use."""


class Engine:
    """One training system. Subclass it, override what differs, and register it in the group `trainoff.engines`.

    The runner calls `missing`, `refuses`, `outside` and `differs`; then, in the trial's process, `open`, `train`,
    `predict` and `close` are called once each, in this order.
    """

    name: ClassVar[str]  # as in studies and records
    about: ClassVar[str] = ""  # for `trainoff engines`
    models: ClassVar[frozenset[str]] = frozenset({"mlp"})  # the families it trains; the runner refuses others
    modes: ClassVar[tuple[str, ...]] = ("single",)  # for studies, which take the first by default
    knobs: ClassVar[Mapping[str, Knob]] = {}  # for studies and `trainoff tune`
    cluster: ClassVar[str | None] = None  # for studies: the cluster software it runs on, such as "spark"
    trainer: ClassVar[str | None] = None  # for faults: a part of the command line of a worker's training process
    package: ClassVar[str | None] = None  # for `version` and `missing`: the distribution
    extra: ClassVar[str | None] = None  # for `missing`: trainoff[extra] installs it
    modules: ClassVar[tuple[str, ...]] = ()  # for `missing`, also on remote hosts: what must be importable

    @property
    def distributed(self) -> bool:
        """Whether the engine can spread one training over several workers."""
        return self.modes != ("single",)

    def version(self) -> str:
        """Return the version of the training system, without importing it."""
        from trainoff import __version__

        try:
            return metadata.version(self.package) if self.package else __version__
        except metadata.PackageNotFoundError:
            return "not installed"

    def missing(self) -> list[Missing]:
        """Return what this machine lacks to run the engine, each with the command that installs it. Must be quick."""
        absent = [module for module in self.modules if util.find_spec(module) is None]
        command = f"pip install 'trainoff[{self.extra}]'" if self.extra else f"pip install {self.package}"
        return [Missing(f"the Python module {module}", command) for module in absent]

    def refuses(self, trial: Trial) -> str | None:
        """Return why the engine cannot run the trial, in one sentence, or None.

        The model, the optimiser and the mode are checked already.
        """
        return None

    def outside(self, trial: Trial) -> str | None:
        """Return why the trial needs the host's network, in one sentence, or None if it can have a separate one."""
        return None

    def optimizers(self, model: str) -> Sequence[str]:
        """Return the optimisers that the engine has for a family of models; by default all that the family has."""
        from trainoff.models import FAMILIES

        return FAMILIES[model].optimizers

    def differs(self, trial: Trial) -> str | None:
        """Return why the engine computes something else than the reference by design, or None if it must agree."""
        return None

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters that a trial really uses, given those asked for, where the engine has no choice.

        MLlib has only the sigmoid, for example. `trainoff plan` and the record show the result.
        """
        return values

    def open(self, job: Job, watch: Watch) -> None:
        """Do everything before training: import the framework, connect to the cluster, ship the data, compile.

        Put each part into its phase with `watch.phase(...)`.
        """

    def train(self, job: Job, watch: Watch) -> None:
        """Train: the one timed method. After every step call `watch.progress`, then `watch.snapshot` if `watch.due()`.

        Stop when `watch.should_stop`. The weights after the last step are always due.
        """
        raise NotImplementedError

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        """Return the class of each row of `x`, by the trained model. Timed as `test`."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the resources that `open` took. Called after a failure, too."""


def families(*bases: str) -> Any:
    """Return an engine's `models`: the families whose class in `trainoff.models` is named here, or derives from it.

    They are looked up when asked for, because `trainoff.models` imports numpy and an adapter should load quickly.
    """

    def find(engine: Engine) -> frozenset[str]:
        from trainoff.models import kinds

        return kinds(*bases)

    return property(find)


def refuse_stop(trial: Trial) -> str | None:
    """Return why a trial cannot stop early, for engines that cannot stop their workers; None if it need not."""
    return f"{trial.engine} makes every step of its epochs; leave `stop` out" if trial.params["stop"] else None


def refuse_sparse_l2(trial: Trial) -> str | None:
    """Return why a sparse model has no L2 term, for engines that update only the weights a batch touches."""
    from trainoff.models import FAMILIES

    if not FAMILIES[trial.model].sparse or not trial.params["l2"]:
        return None
    return "with sparse rows a step touches only the features it has seen, and l2 would touch all; leave l2 at 0"
