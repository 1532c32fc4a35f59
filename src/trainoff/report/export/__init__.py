"""`trainoff export`: the records for other tools, as tables, as TensorBoard's event files or as MLflow's runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainoff.analysis import newest
from trainoff.analysis.format import count
from trainoff.data import Progress
from trainoff.errors import TrainoffError
from trainoff.records import DamagedRecord, Record
from trainoff.report.export import common, mlflow, tensorboard
from trainoff.report.export.common import ExportFolder
from trainoff.reproductions.published import beside, some_of

FORMATS = ("csv", "parquet", "tensorboard", "mlflow")


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
        return self.place or beside(home, f"export-{self.to}")


def export(options: ExportOptions, say: Progress) -> tuple[list[str], list[DamagedRecord]]:
    """Write the newest attempt at every trial for another tool; returns what to tell, and the damaged records."""
    if options.uri and options.to != "mlflow":
        raise TrainoffError(f"--uri is the address of an MLflow server; --to {options.to} writes files, -o says where")
    found, damaged = some_of(options.folder)
    records = newest(found)
    if options.uri:
        told = mlflow.write_to(options.uri, options.folder, records, say)
    else:
        with ExportFolder(options.target, options.to) as place:
            told = _writer(options.to)(place, options.folder, records, say)
    return [f"{count(len(records), 'record')} exported to {options.uri or options.target}{told[0]}", *told[1:]], damaged


def _writer(to: str) -> Callable[[ExportFolder, Path, list[Record], Progress], list[str]]:
    return {"tensorboard": tensorboard.write, "mlflow": mlflow.write}.get(to, common.write)
