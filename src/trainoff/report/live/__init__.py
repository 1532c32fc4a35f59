"""`trainoff view`: the report, live, in the browser, while a study runs. Reads, and never writes."""

from trainoff.report.live.server import ViewOptions, serve

__all__ = ["ViewOptions", "serve"]
