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
    """A Polars frame with a row per record; nested fields become columns such as `params.epochs`."""
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
    """Lists and tables as text, so that every column has one type."""
    example = next((value for value in values if value is not None), None)
    if not isinstance(example, dict | list):
        return values
    return [None if value is None else str(value) for value in values]


Say = Callable[[str, int, int | None], None]  # what is being done, how much of it is done, and of how much
_CURVE = ("step", "samples_seen", "train_s", "wall_s", "core_s", "objective", "loss", "accuracy")
_SAMPLES = ("t_s", "role", "processes", "threads", "user_s", "system_s", "rss", "pss", "read_bytes", "write_bytes")
_WHOLE = ("step", "samples_seen", "processes", "threads", "rss", "pss", "read_bytes", "write_bytes")
_TEXT = ("study", "trial_id", "role")


def curves(folder: Path, records: Sequence[Record], say: Say | None = None) -> polars.DataFrame:
    """The learning curves of the records below a folder: a row per snapshot, after its study and trial."""
    return _together(folder, records, "curve", _CURVE, say)


def samples(folder: Path, records: Sequence[Record], say: Say | None = None) -> polars.DataFrame:
    """The resource series of the records below a folder: a row per role and sample, after its study and trial."""
    return _together(folder, records, "samples", _SAMPLES, say)


def series_of(folder: Path, record: Record, name: str) -> polars.DataFrame | None:
    """The `curve` or the `samples` of one record; None if it has none."""
    import polars

    path = folder_of(folder, record) / f"{name}.parquet"
    if not path.is_file():
        return None
    try:
        return polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        told = " ".join(str(error).split())
        raise TrainoffError(f"{path}: this file is damaged ({told}); move the record away") from error


def _together(
    folder: Path, records: Sequence[Record], name: str, columns: Sequence[str], say: Say | None
) -> polars.DataFrame:
    import polars

    frames = [_empty(columns)]
    for number, record in enumerate(records, 1):
        one = series_of(folder, record, name)
        if one is not None and one.width:
            mine = [polars.lit(record.study).alias("study"), polars.lit(record.trial_id).alias("trial_id")]
            frames.append(one.select(*mine, polars.all()))
        if say:
            say(f"reading {name}", number, len(records))
    return polars.concat(frames, how="diagonal_relaxed")


def _empty(columns: Sequence[str]) -> polars.DataFrame:
    """The columns that are always there, in order; what only some trials have comes after them."""
    import polars

    def kind(name: str) -> type[polars.DataType]:
        return polars.String if name in _TEXT else polars.Int64 if name in _WHOLE else polars.Float64

    return polars.DataFrame(schema={name: kind(name) for name in ("study", "trial_id", *columns)})
