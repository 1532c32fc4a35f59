"""The desk: makes the page and its data once for all who ask, and again only when there are new records."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from trainoff.analysis import newest
from trainoff.report.html import compose, render
from trainoff.report.live.folder_watcher import Lookout


class Desk:
    """What the page shows, as of the newest records that the lookout has told of."""

    def __init__(self, folder: Path, lookout: Lookout) -> None:
        self._folder = folder
        self._lookout = lookout
        self._making = threading.Lock()
        self._version = -1
        self._json = b""
        self._page = b""

    def json(self) -> tuple[int, bytes]:
        """The newest attempt at every trial, and the version of the records that this is."""
        with self._making:
            self._renew()
            if not self._json:
                records = [record.to_json() for record in newest(self._lookout.records)]
                self._json = json.dumps({"folder": str(self._folder), "records": records}).encode()
            return self._version, self._json

    def page(self) -> bytes:
        """The page with its charts in it."""
        with self._making:
            self._renew()
            if not self._page:
                began = time.monotonic()
                content = compose(self._folder, self._lookout.records, self._lookout.damaged)
                self._page = render(content, live=True).encode()
                self._lookout.rest(time.monotonic() - began)
            return self._page

    def _renew(self) -> None:
        version = self._lookout.sight().records
        if version != self._version:
            self._json = self._page = b""
            self._version = version
