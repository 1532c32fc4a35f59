"""Records, learning curves and resource samples as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.errors import TrainoffError
from trainoff.records.schema import Record
from trainoff.records.store import folder_of

if TYPE_CHECKING:
    import polars

_NESTED = ("params", "phases_s", "time_to_target", "equivalence", "noise", "cpu_s_by_role", "counts", "fault")
_LEFT_OUT = ("environment", "traceback", "log_tail", "limits", "targets", "peak_memory_bytes_by_role")


def table(records: Sequence[Record]) -> polars.DataFrame:
    """Return a Polars frame with a row per record; nested fields become columns such as `params.epochs`."""
    import polars

    columns: dict[str, list[Any]] = {}
    for name in Record.__dataclass_fields__:
        values = [getattr(record, name) for record in records]
        if name in _NESTED:
            keys = dict.fromkeys(key for value in values for key in value)
            columns |= {f"{name}.{key}": [value.get(key) for value in values] for key in keys}
        elif name not in _LEFT_OUT:
            columns[name] = values
    return polars.DataFrame({name: _plain(values) for name, values in columns.items()}, strict=False)


def _plain(values: list[Any]) -> list[Any]:
    """Return lists and tables as text, so that every column has one type."""
    example = next((value for value in values if value is not None), None)
    if not isinstance(example, dict | list):
        return values
    return [None if value is None else str(value) for value in values]


Progress = Callable[[str, int, int | None], None]  # called with what is being done, how much is done, and of how much
# The columns that every trial has; those of some trials come after them.
_CURVE: dict[str, type] = {"step": int, "samples_seen": int}
_CURVE |= dict.fromkeys(("train_s", "wall_s", "core_s", "objective", "loss", "accuracy"), float)
_SAMPLES: dict[str, type] = {"t_s": float, "role": str, "processes": int, "threads": int}
_SAMPLES |= dict.fromkeys(("user_s", "system_s"), float)
_SAMPLES |= dict.fromkeys(("rss", "pss", "read_bytes", "write_bytes"), int)


def curves(folder: Path, records: Sequence[Record], progress: Progress | None = None) -> polars.DataFrame:
    """Return the learning curves of all records: a row per snapshot, with its study and trial."""
    return _concat(folder, records, "curve", _CURVE, progress)


def samples(folder: Path, records: Sequence[Record], progress: Progress | None = None) -> polars.DataFrame:
    """Return the resource series of all records: a row per role and sample, with its study and trial."""
    return _concat(folder, records, "samples", _SAMPLES, progress)


def series_of(folder: Path, record: Record, name: str) -> polars.DataFrame | None:
    """Return the `curve` or the `samples` of one record; None if it has none."""
    import polars

    path = folder_of(folder, record) / f"{name}.parquet"
    if not path.is_file():
        return None
    try:
        return polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        why = " ".join(str(error).split())
        raise TrainoffError(f"{path}: this file is damaged ({why}); move the record away") from error


def _concat(
    folder: Path, records: Sequence[Record], name: str, columns: dict[str, type], progress: Progress | None
) -> polars.DataFrame:
    import polars

    frames = [polars.DataFrame(schema={"study": str, "trial_id": str, **columns})]
    for number, record in enumerate(records, 1):
        one = series_of(folder, record, name)
        if one is not None and one.width:
            identity = [polars.lit(record.study).alias("study"), polars.lit(record.trial_id).alias("trial_id")]
            frames.append(one.select(*identity, polars.all()))
        if progress:
            progress(f"reading {name}", number, len(records))
    return polars.concat(frames, how="diagonal_relaxed")
