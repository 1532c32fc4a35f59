"""Reports for tests, and a browser's page that must not complain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from made import folder_of_made, made
from trainoff.records import Record
from trainoff.report.page import gather, render

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Watched:
    """A page that must not complain, and must not ask anybody for anything."""

    def __init__(self, browser: Browser, path: Path, fragment: str = "", **more: Any) -> None:
        self.wrong: list[str] = []
        self.page = browser.new_context(viewport={"width": 1440, "height": 900}, **more).new_page()
        self.page.on("console", lambda said: self.wrong.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: self.asked(asked.url))
        self.url = path.resolve().as_uri()
        self.page.goto(self.url + fragment)

    def asked(self, url: str) -> None:
        """Nothing but the page itself may be asked for."""
        if url.partition("#")[0] != self.url and not url.startswith(("data:", "blob:")):
            self.wrong.append(f"asked for {url}")

    def draw_all(self) -> None:
        """Scroll until every chart is drawn."""
        for figure in self.page.query_selector_all("figure.chart"):
            if figure.is_visible():
                figure.scroll_into_view_if_needed()
                self.page.wait_for_function("f => f.dataset.drawn === 'yes'", arg=figure)

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
