"""The engine contract: what a training system must offer to take part, and what it is given.

An engine is one class with four methods that do the work (`open`, `train`, `predict`, `close`) and two
that say beforehand what it cannot do (`missing`, `refuses`). docs/add-an-engine.md walks through one.
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
    """Something this machine lacks for an engine, and the one command that brings it."""

    what: str
    command: str

    def __str__(self) -> str:
        return f"needs {self.what}; {self.command}"


class Refused(Exception):
    """Raised by `open` where only the data shows that the engine cannot run the trial; the record is `unsupported`."""


class WorkerFailed(Exception):
    """Raised where a worker failed and left its own words: they say more than the driver's.

    The last line of `said` becomes the record's reason; `log` is the end of what the worker logged.
    """

    def __init__(self, role: str, said: str, log: str = "") -> None:
        super().__init__(f"{role}: {said}")
        self.role, self.said, self.log = role, said, log


@dataclass(frozen=True)
class Knob:
    """A parameter that only some engines have, as a study file may set it.

    `kind` is the type of one value; `choices` or `minimum` narrow it.
    """

    kind: type
    default: Any
    about: str
    choices: tuple[Any, ...] = ()
    minimum: float | None = None


DEVICE = Knob(str, "cpu", "where it trains: on the CPU or on one GPU", choices=("cpu", "cuda"))


@dataclass
class Job:
    """Everything a trial needs to train, the same for all engines."""

    data: Data
    model: Any  # a Model of trainoff.models
    weights: NamedWeights  # where training starts, float32; copy before changing
    order: Order  # which rows make up which batch
    rates: NDArray[np.float64]  # the learning rate of each step; rates[step - 1]
    params: Mapping[str, Any]  # every hyper-parameter and knob, resolved
    mode: str
    workers: int
    cores: float  # per worker
    memory_gb: float | None  # per worker
    cluster: Cluster
    folder: Path  # scratch space that is deleted after the trial


class Phases(Protocol):
    """The part of a watch that tells which phase it is."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Book the time inside the `with` on a phase: import, cluster_start, data_load, ship, compile, ..."""


class Watch(Phases, Protocol):
    """The only way an engine speaks: it tells the time, takes snapshots and says when to stop."""

    should_stop: bool  # true after the step that should be the last; changes only inside `progress`

    @property
    def snapshot_schedule(self) -> SnapshotSchedule:
        """When snapshots are due, for workers in other processes, which cannot call `due`."""

    def progress(self, step: int, loss: float | None = None, samples_seen: int | None = None) -> None:
        """Say that `step` updates are done: the heartbeat. Cheap enough to call after every step."""

    def due(self, settle: Callable[[], object] | None = None) -> bool:
        """Is a snapshot wanted now? Fetch the weights only then. If true, the clock stands until `snapshot`.

        Where steps are still under way when Python goes on, as on a GPU, `settle` waits for them: it is called first,
        on the clock, and only if a snapshot is wanted.
        """

    def snapshot(self, samples_seen: int, weights: Weights) -> None:
        """Hand over the weights, which are copied at once. The time this takes is not training time."""

    def objective(self, step: int, samples_seen: int, train_s: float, loss: float) -> None:
        """Tell afterwards what the training loss was at a step, where a system says so only at its end."""

    def lost(self, who: str, redone: int = 0, ago_s: float = 0.0) -> None:
        """Say at once that somebody is lost, and how many samples must be seen again; or that it was some time ago."""

    def count(self, name: str, value: float) -> None:
        """Put a figure of the engine's own into the record, under `counts`."""

    def breakdown(self, name: str, figures: Mapping[str, float]) -> None:
        """Put a figure into the record that has parts, under `breakdowns`: seconds by worker, updates by staleness."""

    def task(self, worker: str, start_s: float, end_s: float) -> None:
        """Put a task into the record's timeline: when a worker began and ended it, in seconds since training began."""

    def page(self, name: str, host: str, port: int) -> None:
        """Say that there is something to look at while it trains, a dashboard, which anybody here may then open."""

    def note(self, name: str, text: str) -> None:
        """Put a fact of the engine's own into the record, under `notes`: the library that multiplied, say."""


class Engine:
    """One training system. Subclass it, fill in what differs, and name it in `trainoff.engines`.

    The life of a trial: `missing` and `refuses` in the runner, then in a process of its own
    `open`, `train`, `predict`, `close`, each once and in this order.
    """

    name: ClassVar[str]
    about: ClassVar[str] = ""
    models: ClassVar[frozenset[str]] = frozenset({"mlp"})
    modes: ClassVar[tuple[str, ...]] = ("single",)  # the first is the default
    package: ClassVar[str | None] = None  # the distribution whose version is the engine's version
    extra: ClassVar[str | None] = None  # trainoff[extra] installs it
    modules: ClassVar[tuple[str, ...]] = ()  # what must be importable
    knobs: ClassVar[Mapping[str, Knob]] = {}
    cluster: ClassVar[str | None] = None  # the cluster software it runs on, as in "spark"; None: plain processes
    trainer: ClassVar[str | None] = None  # a part of the command line of the process that trains, if a worker has more

    @property
    def distributed(self) -> bool:
        """Whether the engine can spread one training over several workers."""
        return self.modes != ("single",)

    def version(self) -> str:
        """The version of the training system, without importing it."""
        from trainoff import __version__

        try:
            return metadata.version(self.package) if self.package else __version__
        except metadata.PackageNotFoundError:
            return "not installed"

    def missing(self) -> list[Missing]:
        """What this machine lacks to run the engine, each with the command that installs it. Must be quick."""
        absent = [module for module in self.modules if util.find_spec(module) is None]
        command = f"pip install 'trainoff[{self.extra}]'" if self.extra else f"pip install {self.package}"
        return [Missing(f"the Python module {module}", command) for module in absent]

    def refuses(self, trial: Trial) -> str | None:
        """Why the engine cannot run that trial, in one sentence, or None. Models and modes are checked already."""
        return None

    def outside(self, trial: Trial) -> str | None:
        """Why the trial must reach the host's network, in one sentence, or None if it can have one of its own."""
        return None

    def optimizers(self, model: str) -> Sequence[str]:
        """Return the optimisers that the engine has for a family of models; by default all that the family has."""
        from trainoff.models import FAMILIES

        return FAMILIES[model].optimizers

    def differs(self, trial: Trial) -> str | None:
        """Why the engine does other arithmetic than the reference by design, or None if it must agree."""
        return None

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """The parameters that a trial will really use, given those asked for, where the engine has no choice.

        MLlib has only the sigmoid, for example. `trainoff plan` shows what comes out, and so does the record.
        """
        return values

    def open(self, job: Job, watch: Watch) -> None:
        """Import the framework, connect to the cluster, ship the data, compile: everything before training.

        Book each part on its phase with `watch.phase(...)`.
        """

    def train(self, job: Job, watch: Watch) -> None:
        """Train: the one timed method. After every step call `watch.progress`, then snapshot if `watch.due()`.

        Stop when `watch.should_stop`. The weights after the last step are always due.
        """
        raise NotImplementedError

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        """The class of each row of `x`, by the trained model. Timed as `test`."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what `open` took. Called after a failure too."""


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


class Broken(Engine):
    """Stands in for an engine whose adapter cannot be loaded."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name  # type: ignore[misc]  # a class attribute everywhere else
        self._why = why

    def missing(self) -> list[Missing]:
        return [Missing("an adapter that can be loaded", self._why)]
