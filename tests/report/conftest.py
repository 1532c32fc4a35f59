"""Fixtures of the report's tests: a browser, its pages and a report to open."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helpers.pages import Watched, small_report
from helpers.running import HANGS_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium, this machine's own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            timeout=1000 * HANGS_S,
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def free_pages() -> list[tuple[dict[str, Any], Watched]]:
    """Pages that no test uses now, and what each is set to."""
    return []


@pytest.fixture
def watched(browser: Browser, free_pages: list[tuple[dict[str, Any], Watched]]) -> Iterator[Callable[..., Watched]]:
    """Opens pages; at the end of the test none of them may have complained."""
    used: list[tuple[dict[str, Any], Watched]] = []

    def open_page(path: Path, fragment: str = "", **more: Any) -> Watched:
        place = next((at for at, (given, _) in enumerate(free_pages) if given == more), None)
        used.append(free_pages.pop(place) if place is not None else (more, Watched(browser, **more)))
        used[-1][1].open(path, fragment)
        return used[-1][1]

    yield open_page
    for given, one in used:
        one.leave()
        free_pages.append((given, one))


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a few made records, as a file."""
    return small_report(tmp_path_factory.mktemp("report") / "made")
