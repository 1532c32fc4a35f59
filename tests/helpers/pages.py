"""Reports for tests, and a browser's page that must not complain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.records import folder_of_made, made
from helpers.running import HANGS_S
from trainoff.records import Record
from trainoff.report.html import gather, render

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, ViewportSize


SIZE: ViewportSize = {"width": 1440, "height": 900}


class Watched:
    """A page that must not complain, and must not ask anybody for anything.

    One page after the other is shown in it: a browser that has the program of a report compiled shows the next sooner.
    """

    def __init__(self, browser: Browser, **more: Any) -> None:
        self.wrong: list[str] = []
        self.url = ""
        self.page = browser.new_context(**more).new_page()
        self.page.set_default_timeout(HANGS_S * 1000)
        self.page.on("console", lambda said: self.wrong.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: self.asked(asked.url))

    def open(self, path: Path, fragment: str = "") -> None:
        """Show a page as if for the first time."""
        self.page.set_viewport_size(SIZE)
        self.page.emulate_media(media="screen")
        self.url = path.resolve().as_uri()
        self.page.goto(self.url + fragment)

    def leave(self) -> None:
        """End the page and what it has stored; it must not have complained."""
        wrong, self.wrong = self.wrong, []
        self.page.evaluate("localStorage.clear()")
        self.page.goto("about:blank")
        assert wrong == []

    def asked(self, url: str) -> None:
        """Nothing but the page itself may be asked for."""
        if url.partition("#")[0] not in (self.url, "about:blank") and not url.startswith(("data:", "blob:")):
            self.wrong.append(f"asked for {url}")

    def draw_all(self) -> None:
        """Scroll until every chart is drawn."""
        for figure in self.page.query_selector_all("figure.chart"):
            if figure.is_visible():
                figure.scroll_into_view_if_needed()
                self.page.wait_for_function("f => f.dataset.drawn === 'yes'", arg=figure)

    def resize(self, width: int, height: int) -> None:
        """Make the window wider or narrower, and wait until the page begins to draw all anew: a moment later."""
        self.draw_all()
        self.page.evaluate(
            "() => document.querySelectorAll('[data-drawn]').forEach((each) => { each.dataset.drawn = 'before'; })"
        )
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_function("() => document.querySelectorAll('[data-drawn=before]').length === 0")

    def copy(self, button: Locator) -> list[str]:
        """Press a button that copies: it says that it did, for a moment that here does not end; the lines it copied."""
        self.page.evaluate("() => { window.setTimeout = () => 0; }")
        button.click()
        button.filter(has_text="copied").wait_for()
        copied: str = self.page.evaluate("navigator.clipboard.readText()")
        return copied.splitlines()

    def marks(self, chart: str, kind: str) -> int:
        """How many marks of a kind a chart has."""
        marks = f'figure[data-name="{chart}"] svg .mark-{kind}.role-mark'
        return self.page.locator(f"{marks} path, {marks} line").count()


def page_of(folder: Path, records: Sequence[Record], **more: int) -> Path:
    """The report of some records, in a file."""
    folder_of_made(folder, records, **more)
    path = folder / "report.html"
    path.write_text(render(gather(folder)))
    return path


def small_report(folder: Path) -> Path:
    """Three engines, two repetitions, two numbers of workers, a failure."""
    records = []
    for seed in (1, 2):
        records += [made("torch", seed, 2.0 + seed / 10), made("numpy", seed, 1.0)]
        for workers in (1, 2):
            own = {"mode": "sync", "workers": workers, "network_bytes": 10**6, "isolation": {"own_network": True}}
            records.append(made("torch-ddp", seed, 1.5 * workers, **own))
    lost = {"status": "crashed", "reason": "worker 1: it fell over", "phase": "train", "train_s": None,
            "time_to_target": {}, "test_accuracy": None, "log_tail": "the end of its log"}  # fmt: skip
    records.append(made("sklearn", 1, **lost))
    return page_of(folder, records)
