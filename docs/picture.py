"""The picture in the README: the first screen of a report, as Chromium shows it. `make picture` calls it."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def take(report: Path, picture: Path) -> None:
    """Open a report and save what one sees first."""
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 1130}, device_scale_factor=1.5)
        page.goto(report.resolve().as_uri())
        page.wait_for_function("document.querySelectorAll('figure[data-drawn]').length >= 2")
        page.screenshot(path=picture)
        chromium.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
