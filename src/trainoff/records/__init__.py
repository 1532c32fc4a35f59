"""Records of trials: their schema, the store, and tables of them."""

from trainoff.records.schema import METRICS, PUBLISHED, Record
from trainoff.records.store import STUDY_COPY, DamagedRecord, Store, folder_of, no_records, scan
from trainoff.records.table import table

__all__ = [
    "METRICS",
    "PUBLISHED",
    "STUDY_COPY",
    "DamagedRecord",
    "Record",
    "Store",
    "folder_of",
    "no_records",
    "scan",
    "table",
]
