"""`trainoff view`: the report, live, in the browser, while a study runs. Reads, and never writes."""

from trainoff.report.live.server import Wish, serve

__all__ = ["Wish", "serve"]
