"""What others published: figures as records, every claim, and the documents they are from.

`documents()` has them as printed, `records(name)` as records of the kind `published`, `claims()` what they say.
"""

from trainoff.published.document import Document, Fact, Picture, Slip, Table, documents
from trainoff.published.place import PREFIX, beside, published_name, records_of, some_of
from trainoff.reproductions.claims import KINDS, REPRODUCTIONS, Claim, claims, read_claims
from trainoff.reproductions.published import NOT_STATED, names, records

__all__ = [
    "KINDS",
    "NOT_STATED",
    "PREFIX",
    "REPRODUCTIONS",
    "Claim",
    "Document",
    "Fact",
    "Picture",
    "Slip",
    "Table",
    "beside",
    "claims",
    "documents",
    "names",
    "published_name",
    "read_claims",
    "records",
    "records_of",
    "some_of",
]
