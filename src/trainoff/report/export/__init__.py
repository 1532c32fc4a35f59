"""Export records for other tools: as tables, as TensorBoard event files or as MLflow runs."""

from __future__ import annotations

import json
import math
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
    from tensorboard.compat.proto.event_pb2 import Event


@dataclass(frozen=True)
class ExportOptions:
    """The records to export, the format and the destination."""

    folder: Path
    to: str
    place: Path | None = None  # None: beside the records
    uri: str | None = None  # an MLflow server instead of a folder

    @property
    def target(self) -> Path:
        """The folder to write; the export of a single record goes beside it, as records are never changed."""
        parent = self.folder.parent if (self.folder / "record.json").exists() else self.folder
        return self.place or output_path(parent, f"export-{self.to}")


def export(options: ExportOptions, progress: Progress) -> tuple[list[str], list[DamagedRecord]]:
    """Export the newest attempt at every trial; return the lines to print, and the damaged records."""
    if options.uri and options.to != "mlflow":
        raise TrainoffError(f"--uri is the address of an MLflow server; --to {options.to} writes files, -o says where")
    found, damaged = require_records(options.folder)
    records = newest(found)
    if options.uri:
        from trainoff.report.export import mlflow

        details = mlflow.write_to(options.uri, options.folder, records, progress)
    else:
        with ExportFolder(options.target, options.to) as target:
            details = _writer(options.to)(target, options.folder, records, progress)
    summary = f"{count(len(records), 'record')} exported to {options.uri or options.target}{details[0]}"
    return [summary, *details[1:]], damaged


def _writer(to: str) -> Callable[[ExportFolder, Path, list[Record], Progress], list[str]]:
    from trainoff.report.export import mlflow

    return {"tensorboard": write_tensorboard, "mlflow": mlflow.write}.get(to, write_tables)


def write_tables(target: ExportFolder, folder: Path, records: Sequence[Record], progress: Progress) -> list[str]:
    """Write the three tables as CSV or Parquet; return the end of the summary."""
    frames = {
        "records": table(records),
        "curves": curves(folder, records, progress),
        "samples": samples(folder, records, progress),
    }
    sizes = []
    for name, frame in frames.items():
        with target.file(f"{name}.{target.to}") as path:
            frame.write_csv(path) if target.to == "csv" else frame.write_parquet(path)
        sizes.append(f"{name}.{target.to} ({frame.height:,} x {frame.width})")
    return [f": {', '.join(sizes)}"]


class ExportFolder:
    """A folder for an export: new, empty, or with the marker file of an earlier export.

    At the end of the block, files of the earlier export that were not written again are removed. Files that are not in
    the marker file are left alone.
    """

    def __init__(self, folder: Path, to: str) -> None:
        self.folder = folder
        self.to = to
        self._written: list[str] = []
        self._earlier: list[str] = []

    def __enter__(self) -> Self:
        with self._errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._earlier = self._exported_files()
            self._write_marker(self._earlier)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with self._errors():
                for name in set(self._earlier) - set(self._written):
                    self._remove(name)
                self._write_marker(self._written)
        else:
            with suppress(OSError):  # the first error is the one to report
                self._write_marker(list(dict.fromkeys([*self._earlier, *self._written])))

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """Yield a path to write to, which gets the file's name at the end of the block."""
        path = self.folder / name
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_open(path) as draft:
                yield Path(draft.name)
        self._written.append(name)

    def _exported_files(self) -> list[str]:
        """Return the files of the earlier export; raise an error if the folder has others but no marker file."""
        marker = self._read_marker()
        if marker is None and any(self.folder.iterdir()):
            raise TrainoffError(
                f"{self.folder}: there are files here that trainoff did not export; name another folder with -o"
            )
        if marker and marker.get("to") != self.to:
            raise TrainoffError(
                f"{self.folder}: this folder holds an export to {marker.get('to')}; name another folder with -o"
            )
        return [str(name) for name in marker.get("files", [])] if marker else []

    def _read_marker(self) -> dict[str, Any] | None:
        try:
            marker = json.loads((self.folder / EXPORTED).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return marker if isinstance(marker, dict) else None

    def _write_marker(self, files: list[str]) -> None:
        text = json.dumps({"to": self.to, "trainoff": __version__, "files": files}, indent=1)
        atomic_write(self.folder / EXPORTED, text + "\n")

    def _remove(self, name: str) -> None:
        path = (self.folder / name).resolve()
        if path.is_relative_to(self.folder.resolve()):  # unless the marker was changed to name files elsewhere
            path.unlink(missing_ok=True)
            if path.parent != self.folder.resolve() and not any(path.parent.iterdir()):
                path.parent.rmdir()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise TrainoffError(
                f"{self.folder}: nothing can be exported there ({why}); name another folder with -o"
            ) from error


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Wrap the imports of an optional dependency; if it is missing, raise an error that says how to install it."""
    try:
        yield
    except ImportError as error:
        raise TrainoffError(
            f'--to {extra} needs {extra}, which is not installed; pip install "trainoff[{extra}]"'
        ) from error


LONGEST = 120  # characters of a name; file systems allow 255 bytes
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
    """A record as a run of TensorBoard or MLflow."""

    record: Record
    name: str
    folder: Path

    @property
    def start(self) -> float:
        """Seconds since the epoch; 0 if the trial never started."""
        return datetime.fromisoformat(self.record.started_at).timestamp() if self.record.started_at else 0.0

    @property
    def end(self) -> float:
        return self.start + (self.record.cold_s or 0.0)

    def settings(self) -> dict[str, Any]:
        """Return the engine, its mode, its machine and its parameters."""
        facts = {name: getattr(self.record, name) for name in FACTS}
        return {name: value for name, value in {**facts, **self.record.params}.items() if value is not None}

    def figures(self) -> dict[str, float]:
        """Return the known figures by their names in the record."""
        record = self.record
        found = {name: getattr(record, name) for name in FIGURES}
        found |= {f"test_metrics/{name}": value for name, value in record.test_metrics.items()}
        found |= {f"time_to_target/{target}": value for target, value in record.time_to_target.items()}
        found |= {f"phases_s/{name}": value for name, value in record.phases_s.items()}
        return {name: float(value) for name, value in found.items() if value is not None}

    def points(self) -> Iterator[tuple[str, int, float, float]]:
        """Yield the points of the learning curve: name, samples seen, seconds since the epoch, value."""
        frame = series_of(self.folder, self.record, "curve")
        for row in frame.iter_rows(named=True) if frame is not None else ():
            since = row.get("wall_s") if row.get("wall_s") is not None else row.get("train_s")
            for name in VALUES:
                if row.get(name) is not None:
                    yield name, int(row["samples_seen"]), self.start + (since or 0.0), float(row[name])


def tracked(folder: Path, records: Sequence[Record]) -> list[TrackedRun]:
    """Return the records as runs with unique names: engine, mode, workers, setting, seed."""
    several = len({record.study for record in records}) > 1
    runs: dict[str, TrackedRun] = {}
    for group in groups(records):
        for record in group.records:
            study = f"{_plain(record.study)}/" if several else ""
            name = study + _name(record, group.label)
            if name in runs:  # the names differ only after the cut
                name = f"{name},{record.trial_id.rsplit('-', 1)[-1]}"
            runs[name] = TrackedRun(record, name, folder)
    return list(runs.values())


def _name(record: Record, label: dict[str, Any]) -> str:
    rest = [f"{key}={value_text(value)}" for key, value in label.items() if key != "workload"]
    workload = [record.workload] if "workload" in label else []
    parts = [record.engine, *workload, record.mode, f"workers={record.workers}", *rest]
    return _plain(",".join(parts))[:LONGEST] + f",seed={record.seed}"


def _plain(text: str) -> str:
    """Return a text without characters that file systems or trackers may reject."""
    return re.sub(r"[^\w.,=+-]+", "_", text).strip(".")


EVENT_VERSION = "brain.Event:2"  # the first event of a file


def write_tensorboard(target: ExportFolder, folder: Path, records: Sequence[Record], progress: Progress) -> list[str]:
    """Write a folder with an event file per trial; return the end of the summary and the command that opens it."""
    with needs("tensorboard"):
        from tensorboard.summary.writer.record_writer import RecordWriter
    runs = tracked(folder, records)
    for number, run in enumerate(runs, 1):
        # TensorBoard joins the files of a folder in the order of their names, so there is only one.
        with target.file(f"{run.name}/events.out.tfevents.{run.start:.0f}.trainoff") as path, path.open("wb") as file:
            writer = RecordWriter(file)
            for event in _events(run):
                writer.write(event.SerializeToString())
        progress("writing event files", number, len(runs))
    return ["", f"Open it: tensorboard --logdir {target.folder}"]


def _events(run: TrackedRun) -> Iterator[Event]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    yield Event(wall_time=run.start, file_version=EVENT_VERSION)
    yield Event(wall_time=run.start, summary=_hparams(run))
    for name, step, at, value in run.points():
        yield Event(wall_time=at, step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))
    end = run.record.samples_seen or 0
    for name, value in run.figures().items():
        final = Summary.Value(tag=f"final/{name}", simple_value=value)
        yield Event(wall_time=run.end, step=end, summary=Summary(value=[final]))


def _hparams(run: TrackedRun) -> Any:
    """Return what the HPARAMS page of TensorBoard shows of a run."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    known = {"study": run.record.study, "status": run.record.status, **run.settings()}
    return hparams_pb(
        {name: _simple(value) for name, value in known.items()},
        trial_id=run.record.trial_id,
        start_time_secs=run.start,
    )


def _simple(value: Any) -> bool | int | float | str:
    finite = isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if finite else str(value)
