"""Fixtures of the report's tests: a browser, pages in it and a report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helpers.pages import ReportPage, small_report
from helpers.running import HANGS_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium, the one that is installed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            timeout=1000 * HANGS_S,
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def idle_pages() -> list[tuple[dict[str, Any], ReportPage]]:
    """Pages that no test uses at the moment, each with its options."""
    return []


@pytest.fixture
def open_page(
    browser: Browser, idle_pages: list[tuple[dict[str, Any], ReportPage]]
) -> Iterator[Callable[..., ReportPage]]:
    """A function that opens pages; at the end of the test nothing may have gone wrong in them."""
    used: list[tuple[dict[str, Any], ReportPage]] = []

    def opened(path: Path, fragment: str = "", **more: Any) -> ReportPage:
        place = next((at for at, (given, _) in enumerate(idle_pages) if given == more), None)
        used.append(idle_pages.pop(place) if place is not None else (more, ReportPage(browser, **more)))
        used[-1][1].open(path, fragment)
        return used[-1][1]

    yield opened
    for given, one in used:
        one.close()
        idle_pages.append((given, one))


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a few made-up records, as a file."""
    return small_report(tmp_path_factory.mktemp("report") / "made")
