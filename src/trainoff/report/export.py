"""Export records for other tools: as tables, as TensorBoard event files or as MLflow runs."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
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
    from mlflow import MlflowClient
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
        details = write_mlflow(options.uri, options.folder, records, progress)
    else:
        with ExportFolder(options.target, options.to) as target:
            write = {"tensorboard": write_tensorboard, "mlflow": write_mlflow_folder}.get(options.to, write_tables)
            details = write(target, options.folder, records, progress)
    summary = f"{count(len(records), 'record')} exported to {options.uri or options.target}{details[0]}"
    return [summary, *details[1:]], damaged


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

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
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
        marker = None
        with suppress(FileNotFoundError, ValueError):
            marker = json.loads((self.folder / EXPORTED).read_text())
        if not isinstance(marker, dict):
            if any(self.folder.iterdir()):
                raise TrainoffError(
                    f"{self.folder}: there are files here that trainoff did not export; name another folder with -o"
                )
            return []
        if marker and marker.get("to") != self.to:
            raise TrainoffError(
                f"{self.folder}: this folder holds an export to {marker.get('to')}; name another folder with -o"
            )
        return [str(name) for name in marker.get("files", [])]

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
EXPORTED_FIGURES = (
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
        found = {name: getattr(record, name) for name in EXPORTED_FIGURES}
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
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    yield Event(wall_time=run.start, file_version="brain.Event:2")
    known = {"study": run.record.study, "status": run.record.status, **run.settings()}
    hparams = {name: _simple(value) for name, value in known.items()}
    yield Event(wall_time=run.start, summary=hparams_pb(hparams, run.record.trial_id, run.start))
    for name, step, at, value in run.points():
        yield Event(wall_time=at, step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))
    end = run.record.samples_seen or 0
    for name, value in run.figures().items():
        final = Summary.Value(tag=f"final/{name}", simple_value=value)
        yield Event(wall_time=run.end, step=end, summary=Summary(value=[final]))


def _simple(value: Any) -> bool | int | float | str:
    finite = isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if finite else str(value)


KEY = "trainoff.record"  # the tag that identifies an exported record
MOST_TEXT = 6000  # characters of a parameter or tag of MLflow
AT_ONCE = 1000  # metrics in one call
IN_A_FOLDER = "MLFLOW_ALLOW_FILE_STORE"
STATUSES = {"ok": "FINISHED", "interrupted": "KILLED"}  # all others are FAILED


def write_mlflow_folder(target: ExportFolder, folder: Path, records: Sequence[Record], progress: Progress) -> list[str]:
    """Write to a folder in MLflow's own format; return the end of the summary and the command that opens it."""
    os.environ[IN_A_FOLDER] = "true"  # MLflow prefers a database, which the slim client cannot write
    details = write_mlflow(target.folder.resolve().as_uri(), folder, records, progress)
    return [*details, f"Open it: {IN_A_FOLDER}=true mlflow ui --backend-store-uri {target.folder}"]


def write_mlflow(uri: str, folder: Path, records: Sequence[Record], progress: Progress) -> list[str]:
    """Write to a tracking URI; return the end of the summary."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # so that a wrong address fails at once
    with needs("mlflow"):
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    runs = tracked(folder, records)
    try:
        client = MlflowClient(uri)
        experiments: dict[str, tuple[str, set[str]]] = {}
        present = 0
        for number, run in enumerate(runs, 1):
            study = run.record.study
            if study not in experiments:
                experiments[study] = _experiment(client, study)
            experiment, exported = experiments[study]
            if _key(run.record) in exported:
                present += 1
            else:
                _write_run(client, experiment, run)
            progress("exporting runs", number, len(runs))
    except (MlflowException, OSError) as error:
        first = str(error).strip().split("\n")[0]
        if "Failed to establish a new connection" in first:
            raise TrainoffError(
                f"{uri}: no MLflow server answers at this address; start one, or leave --uri out"
            ) from error
        raise TrainoffError(f"{uri}: MLflow rejected the runs: {first}") from error
    return [f", {present} of them already present" if present else ""]


def _experiment(client: MlflowClient, study: str) -> tuple[str, set[str]]:
    """Return the id of a study's experiment and the keys of its records; interrupted runs are deleted."""
    found = client.get_experiment_by_name(study)
    if found is None:
        return client.create_experiment(study), set()
    if found.lifecycle_stage == "deleted":
        raise TrainoffError(f"MLflow's experiment `{study}` has been deleted; restore it, or purge it")
    keys: set[str] = set()
    token = None
    while True:
        page = client.search_runs([found.experiment_id], max_results=AT_ONCE, page_token=token)
        for run in page:
            if key := run.data.tags.get(KEY):
                if run.info.status == "RUNNING":
                    client.delete_run(run.info.run_id)
                else:
                    keys.add(key)
        token = page.token
        if not token:
            return found.experiment_id, keys


def _key(record: Record) -> str:
    """Return the identity of a record; two machines may export the same trial to the same server."""
    return f"{record.trial_id}.{record.attempt} {record.started_at} {record.environment.get('host')}"


def _write_run(client: MlflowClient, experiment: str, run: TrackedRun) -> None:
    from mlflow.entities import Metric, Param

    record = run.record
    start, end = int(run.start * 1000), int(run.end * 1000)
    tags = {
        KEY: _key(record),
        "status": record.status,
        "reason": record.reason,
        "equivalence": record.equivalence.get("verdict"),
        "trainoff": record.environment.get("trainoff"),
        "mlflow.source.name": "trainoff",
    }
    texts = {name: str(value)[:MOST_TEXT] for name, value in tags.items() if value is not None}
    run_id = client.create_run(experiment, start, texts, run.name).info.run_id
    metrics = [Metric(name, value, int(at * 1000), samples) for name, samples, at, value in run.points()]
    metrics += [Metric(name, value, end, record.samples_seen or 0) for name, value in run.figures().items()]
    client.log_batch(run_id, params=[Param(name, str(value)[:MOST_TEXT]) for name, value in run.settings().items()])
    for first in range(0, len(metrics), AT_ONCE):
        client.log_batch(run_id, metrics[first : first + AT_ONCE])
    client.log_text(run_id, json.dumps(record.to_json(), indent=1), "record.json")
    client.set_terminated(run_id, STATUSES.get(record.status, "FAILED"), end)
