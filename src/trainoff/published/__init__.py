"""What others published: figures as records, every claim, and the documents they are from.

`documents()` has them as printed, `records(name)` as records of the kind `published`, `claims()` what they say.
"""

from trainoff.published.document import Document, Fact, Picture, Slip, Table, documents
from trainoff.published.place import PREFIX, beside, published_name, records_of
from trainoff.published.runs import NOT_STATED, names, records

__all__ = [
    "NOT_STATED",
    "PREFIX",
    "Document",
    "Fact",
    "Picture",
    "Slip",
    "Table",
    "beside",
    "documents",
    "names",
    "published_name",
    "records",
    "records_of",
]
