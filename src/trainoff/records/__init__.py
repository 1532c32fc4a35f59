"""What came out of trials: the record's schema, the folder store, the curve, the tables."""

from trainoff.records.reading import EXPORTED, Damaged, Shelf, no_folder, no_records, scan
from trainoff.records.schema import (
    BY_HAND,
    MEASURED,
    METRICS,
    PUBLISHED,
    SCHEMA_VERSION,
    Metric,
    Record,
    error_of,
    measured,
    time_to_target,
)
from trainoff.records.store import STAGING, STUDY_COPY, Store, abandoned, cannot_write, folder_of
from trainoff.records.table import curves, samples, series_of, table

__all__ = [
    "BY_HAND",
    "EXPORTED",
    "MEASURED",
    "METRICS",
    "PUBLISHED",
    "SCHEMA_VERSION",
    "STAGING",
    "STUDY_COPY",
    "Damaged",
    "Metric",
    "Record",
    "Shelf",
    "Store",
    "abandoned",
    "cannot_write",
    "curves",
    "error_of",
    "folder_of",
    "measured",
    "no_folder",
    "no_records",
    "samples",
    "scan",
    "series_of",
    "table",
    "time_to_target",
]
