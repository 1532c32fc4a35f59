"""`trainoff export`: the records for other tools, as tables, as TensorBoard's event files or as MLflow's runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from trainoff import __version__
from trainoff.analysis import groups, newest
from trainoff.analysis.format import count, value_text
from trainoff.data import Progress
from trainoff.errors import TrainoffError
from trainoff.files import atomic_open, atomic_write
from trainoff.records import EXPORTED, DamagedRecord, Record, curves, samples, series_of, table
from trainoff.reproductions.published import output_path, require_records

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True)
class ExportOptions:
    """What to export, as what, and where to."""

    folder: Path
    to: str
    place: Path | None = None  # None: beside the records
    uri: str | None = None  # an MLflow server instead of a folder

    @property
    def target(self) -> Path:
        """The folder to write into; a record is never written into, what is made of it goes beside it."""
        home = self.folder.parent if (self.folder / "record.json").exists() else self.folder
        return self.place or output_path(home, f"export-{self.to}")


def export(options: ExportOptions, say: Progress) -> tuple[list[str], list[DamagedRecord]]:
    """Write the newest attempt at every trial for another tool; returns what to tell, and the damaged records."""
    if options.uri and options.to != "mlflow":
        raise TrainoffError(f"--uri is the address of an MLflow server; --to {options.to} writes files, -o says where")
    found, damaged = require_records(options.folder)
    records = newest(found)
    if options.uri:
        from trainoff.report.export import mlflow

        told = mlflow.write_to(options.uri, options.folder, records, say)
    else:
        with ExportFolder(options.target, options.to) as place:
            told = _writer(options.to)(place, options.folder, records, say)
    return [f"{count(len(records), 'record')} exported to {options.uri or options.target}{told[0]}", *told[1:]], damaged


def _writer(to: str) -> Callable[[ExportFolder, Path, list[Record], Progress], list[str]]:
    from trainoff.report.export import mlflow, tensorboard

    return {"tensorboard": tensorboard.write, "mlflow": mlflow.write}.get(to, write)


def write(place: ExportFolder, folder: Path, records: Sequence[Record], say: Progress) -> list[str]:
    """Write the three tables; returns what to tell of them."""
    to = place.to
    made = {
        "records": table(records),
        "curves": curves(folder, records, say),
        "samples": samples(folder, records, say),
    }
    for name, frame in made.items():
        with place.file(f"{name}.{to}") as path:
            _write(frame, path, to)
    sizes = [f"{name}.{to} ({frame.height:,} x {frame.width})" for name, frame in made.items()]
    return [f": {', '.join(sizes)}"]


def _write(frame: polars.DataFrame, path: Path, to: str) -> None:
    if to == "csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)


class ExportFolder:
    """A folder that trainoff has exported to, or may: a new one, an empty one, or one that it marked as its own.

    With the end of the `with` it holds what was written now; files of an earlier export that were not written
    again are gone, and what somebody else has put there stays.
    """

    def __init__(self, folder: Path, to: str) -> None:
        self.folder = folder
        self.to = to
        self._written: list[str] = []
        self._before: list[str] = []

    def __enter__(self) -> Self:
        with self._telling():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._before = self._own_files()
            self._mark([*self._before])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with self._telling():
                for name in set(self._before) - set(self._written):
                    self._remove(name)
                self._mark(self._written)
        else:  # all of these are its own
            with suppress(OSError):  # what went wrong first is what is told
                self._mark(list(dict.fromkeys([*self._before, *self._written])))

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """A file to write, which appears under its name once it is whole."""
        path = self.folder / name
        with self._telling():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_open(path) as draft:
                yield Path(draft.name)
        self._written.append(name)

    def _own_files(self) -> list[str]:
        """The files of the export before this one; raises if the folder is somebody else's."""
        marker = self._marker()
        if marker is None and any(self.folder.iterdir()):
            raise TrainoffError(
                f"{self.folder}: there are files here that trainoff did not export; name another folder with -o"
            )
        if marker and marker.get("to") != self.to:
            raise TrainoffError(
                f"{self.folder}: this folder holds an export to {marker.get('to')}; name another one with -o"
            )
        return [str(name) for name in marker.get("files", [])] if marker else []

    def _marker(self) -> dict[str, Any] | None:
        try:
            read = json.loads((self.folder / EXPORTED).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return read if isinstance(read, dict) else None

    def _mark(self, files: list[str]) -> None:
        text = json.dumps({"to": self.to, "trainoff": __version__, "files": files}, indent=1)
        atomic_write(self.folder / EXPORTED, text + "\n")

    def _remove(self, name: str) -> None:
        path = (self.folder / name).resolve()
        if path.is_relative_to(self.folder.resolve()):  # a marker could have been written by anybody
            path.unlink(missing_ok=True)
            if path.parent != self.folder.resolve() and not any(path.parent.iterdir()):
                path.parent.rmdir()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise TrainoffError(
                f"{self.folder}: nothing can be exported there ({why}); name another one with -o"
            ) from error


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the imports of an extra: where it is missing, one sentence says how to get it."""
    try:
        yield
    except ImportError as error:
        raise TrainoffError(
            f'--to {extra} needs {extra}, which is not installed; pip install "trainoff[{extra}]"'
        ) from error


LONGEST = 120  # of a name; file systems take 255 bytes
FIGURES = (
    "test_accuracy",
    "train_s",
    "test_s",
    "cold_s",
    "pause_s",
    "samples_seen",
    "samples_per_s",
    "cpu_s",
    "peak_memory_bytes",
    "network_bytes",
    "disk_read_bytes",
    "disk_write_bytes",
    "context_switches",
    "cost_usd",
)
FACTS = ("engine", "engine_version", "workload", "mode", "workers", "cores", "memory_gb", "cluster", "seed")
VALUES = ("objective", "loss", "accuracy", "auc")


@dataclass(frozen=True)
class TrackedRun:
    """One record as a tracker's run."""

    record: Record
    name: str
    folder: Path

    @property
    def start(self) -> float:
        """When it began, in seconds since 1970; 0 for one that never did."""
        return datetime.fromisoformat(self.record.started_at).timestamp() if self.record.started_at else 0.0

    @property
    def end(self) -> float:
        return self.start + (self.record.cold_s or 0.0)

    def settings(self) -> dict[str, Any]:
        """What was tried: the engine, its mode, its machine, its parameters."""
        facts = {name: getattr(self.record, name) for name in FACTS}
        return {name: value for name, value in {**facts, **self.record.params}.items() if value is not None}

    def figures(self) -> dict[str, float]:
        """What came out: every figure that is known, by its name in the record."""
        one = self.record
        found = {name: getattr(one, name) for name in FIGURES}
        found |= {f"test_metrics/{name}": value for name, value in one.test_metrics.items()}
        found |= {f"time_to_target/{target}": value for target, value in one.time_to_target.items()}
        found |= {f"phases_s/{name}": value for name, value in one.phases_s.items()}
        return {name: float(value) for name, value in found.items() if value is not None}

    def points(self) -> Iterator[tuple[str, int, float, float]]:
        """The learning curve: what, after how many samples, at what time of day, and how much it was."""
        frame = series_of(self.folder, self.record, "curve")
        for row in frame.iter_rows(named=True) if frame is not None else ():
            since = row.get("wall_s") if row.get("wall_s") is not None else row.get("train_s")
            for name in VALUES:
                if row.get(name) is not None:
                    yield name, int(row["samples_seen"]), self.start + (since or 0.0), float(row[name])


def tracked(folder: Path, records: Sequence[Record]) -> list[TrackedRun]:
    """The records, each under a name of its own: engine, mode, workers, setting, seed."""
    several = len({record.study for record in records}) > 1
    made: dict[str, TrackedRun] = {}
    for group in groups(records):
        for record in group.records:
            study = f"{_plain(record.study)}/" if several else ""
            name = study + _name(record, group.label)
            if name in made:  # what tells them apart was cut off
                name = f"{name},{record.trial_id.rsplit('-', 1)[-1]}"
            made[name] = TrackedRun(record, name, folder)
    return list(made.values())


def _name(record: Record, label: dict[str, Any]) -> str:
    rest = [f"{key}={value_text(value)}" for key, value in label.items() if key != "workload"]
    workload = [record.workload] if "workload" in label else []
    parts = [record.engine, *workload, record.mode, f"workers={record.workers}", *rest]
    return _plain(",".join(parts))[:LONGEST] + f",seed={record.seed}"


def _plain(text: str) -> str:
    """Without what a file system or a tracker might take amiss."""
    return re.sub(r"[^\w.,=+-]+", "_", text).strip(".")
