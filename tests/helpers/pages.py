"""Reports of made-up records, and a browser page that collects what goes wrong in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.records import make_record, write_study_folder
from helpers.running import HANGS_S
from trainoff.records import Record
from trainoff.report.html import gather, render

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, ViewportSize


SIZE: ViewportSize = {"width": 1440, "height": 900}


class ReportPage:
    """A browser page that may log no message and request no other address.

    It shows one report after the other: a browser that has compiled a report's program shows the next one sooner.
    """

    def __init__(self, browser: Browser, **more: Any) -> None:
        self.errors: list[str] = []
        self.url = ""
        self.page = browser.new_context(**more).new_page()
        self.page.set_default_timeout(HANGS_S * 1000)
        self.page.on("console", lambda message: self.errors.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self._on_request(request.url))

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a page as if for the first time."""
        self.page.set_viewport_size(SIZE)
        self.page.emulate_media(media="screen")
        self.url = path.resolve().as_uri()
        self.page.goto(self.url + fragment)

    def close(self) -> None:
        """Leave the page, clear its storage and check that nothing went wrong."""
        errors, self.errors = self.errors, []
        self.page.evaluate("localStorage.clear()")
        self.page.goto("about:blank")
        assert errors == []

    def _on_request(self, url: str) -> None:
        """Note a request for anything but the page itself."""
        if url.partition("#")[0] not in (self.url, "about:blank") and not url.startswith(("data:", "blob:")):
            self.errors.append(f"requested {url}")

    def draw_all(self) -> None:
        """Scroll until every chart is drawn."""
        for figure in self.page.query_selector_all("figure.chart"):
            if figure.is_visible():
                figure.scroll_into_view_if_needed()
                self.page.wait_for_function("f => f.dataset.drawn === 'yes'", arg=figure)

    def resize(self, width: int, height: int) -> None:
        """Resize the window and wait until the page begins to redraw its charts, which it does a moment later."""
        self.draw_all()
        self.page.evaluate(
            "() => document.querySelectorAll('[data-drawn]').forEach((each) => { each.dataset.drawn = 'before'; })"
        )
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_function("() => document.querySelectorAll('[data-drawn=before]').length === 0")

    def copy(self, button: Locator) -> list[str]:
        """Click a copy button and return the copied lines; its confirmation, which fades in use, stays here."""
        self.page.evaluate("() => { window.setTimeout = () => 0; }")
        button.click()
        button.filter(has_text="copied").wait_for()
        copied: str = self.page.evaluate("navigator.clipboard.readText()")
        return copied.splitlines()

    def marks(self, chart: str, kind: str) -> int:
        """Count the marks of a kind in a chart."""
        marks = f'figure[data-name="{chart}"] svg .mark-{kind}.role-mark'
        return self.page.locator(f"{marks} path, {marks} line").count()


def write_report(folder: Path, records: Sequence[Record], **more: int) -> Path:
    """Write the report of records to a file; return its path."""
    write_study_folder(folder, records, **more)
    path = folder / "report.html"
    path.write_text(render(gather(folder)))
    return path


def small_report(folder: Path) -> Path:
    """Write the report of three engines, two repetitions, two numbers of workers and a failure."""
    records = []
    for seed in (1, 2):
        records += [make_record("torch", seed, 2.0 + seed / 10), make_record("numpy", seed, 1.0)]
        for workers in (1, 2):
            ddp = {"mode": "sync", "workers": workers, "network_bytes": 10**6, "isolation": {"own_network": True}}
            records.append(make_record("torch-ddp", seed, 1.5 * workers, **ddp))
    lost = {"status": "crashed", "reason": "worker 1: it fell over", "phase": "train", "train_s": None,
            "time_to_target": {}, "test_accuracy": None, "log_tail": "the end of its log"}  # fmt: skip
    records.append(make_record("sklearn", 1, **lost))
    return write_report(folder, records)
