"""The published figures and claims in Python: `from trainoff.published import claims, documents, records`."""

from trainoff.reproductions.published import Claim, Document, claims, documents, names, records

__all__ = ["Claim", "Document", "claims", "documents", "names", "records"]
