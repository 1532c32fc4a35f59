"""The published figures and claims in Python: `from trainoff.published import claims, documents, records`."""

from trainoff.reproductions.claims import Claim, claims
from trainoff.reproductions.published import Document, documents, names, records

__all__ = ["Claim", "Document", "claims", "documents", "names", "records"]
