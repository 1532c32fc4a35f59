"""Export to TensorBoard: an event file per trial, by TensorBoard's own writer and without TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.data import Progress
from trainoff.records import Record
from trainoff.report.export import ExportFolder, TrackedRun, needs, tracked

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

VERSION = "brain.Event:2"  # the first event of a file


def write(target: ExportFolder, folder: Path, records: Sequence[Record], progress: Progress) -> list[str]:
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

    yield Event(wall_time=run.start, file_version=VERSION)
    yield Event(wall_time=run.start, summary=_settings(run))
    for name, samples, at, value in run.points():
        yield Event(wall_time=at, step=samples, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))
    step = run.record.samples_seen or 0
    for name, value in run.figures().items():
        final = Summary.Value(tag=f"final/{name}", simple_value=value)
        yield Event(wall_time=run.end, step=step, summary=Summary(value=[final]))


def _settings(run: TrackedRun) -> Any:
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
