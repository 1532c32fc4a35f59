"""All records as one table, a row each: what analyses, reports and exports start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainoff.records.schema import Record

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
