"""TensorBoard's event files: a run per trial, by TensorBoard's own writer and without TensorFlow."""

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

VERSION = "brain.Event:2"  # what an event file begins with


def write(place: ExportFolder, folder: Path, records: Sequence[Record], say: Progress) -> list[str]:
    """One folder with an event file per trial; returns what to tell of them."""
    with needs("tensorboard"):
        from tensorboard.summary.writer.record_writer import RecordWriter
    found = tracked(folder, records)
    for number, run in enumerate(found, 1):
        # TensorBoard takes the files of a folder in the order of their names; there is one, and it is rewritten whole.
        with place.file(f"{run.name}/events.out.tfevents.{run.start:.0f}.trainoff") as path, path.open("wb") as file:
            writer = RecordWriter(file)
            for event in _events(run):
                writer.write(event.SerializeToString())
        say("writing event files", number, len(found))
    return ["", f"Look: tensorboard --logdir {place.folder}"]


def _events(run: TrackedRun) -> Iterator[Event]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    yield Event(wall_time=run.start, file_version=VERSION)
    yield Event(wall_time=run.start, summary=_settings(run))
    for name, samples, at, value in run.points():
        yield Event(wall_time=at, step=samples, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))
    step = run.record.samples_seen or 0
    for name, value in run.figures().items():
        one = Summary.Value(tag=f"final/{name}", simple_value=value)
        yield Event(wall_time=run.end, step=step, summary=Summary(value=[one]))


def _settings(run: TrackedRun) -> Any:
    """What TensorBoard's HPARAMS page shows of a run."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    known = {"study": run.record.study, "status": run.record.status, **run.settings()}
    return hparams_pb(
        {name: _simple(value) for name, value in known.items()},
        trial_id=run.record.trial_id,
        start_time_secs=run.start,
    )


def _simple(value: Any) -> bool | int | float | str:
    return (
        value
        if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
        else str(value)
    )
