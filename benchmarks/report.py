"""The cost of the report: time and size for 1,000 and 10,000 records with curves, and its speed in Chromium.

It prints seconds, bytes, the first paint, and the time from a click to the changed chart.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from helpers.records import many_records, write_study_folder  # made-up records of the tests
from trainoff.report.html import gather, render  # after the path is set

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
CLICK = """async () => {
  const start = performance.now();
  document.querySelector('.chip input').click();
  const first = document.querySelector('figure.chart');
  while (!first.dataset.drawn) await new Promise((done) => requestAnimationFrame(done));
  return performance.now() - start;
}"""


def main() -> None:
    """Make reports of folders of both sizes and open them."""
    for count, points in ((1000, 40), (10_000, 10)):
        with tempfile.TemporaryDirectory() as scratch:
            folder = write_study_folder(
                Path(scratch) / "many", list(many_records(count)), points, ticks=20 if count == 1000 else 0
            )
            start = time.perf_counter()
            text = render(gather(folder))
            spent = time.perf_counter() - start
            (folder / "report.html").write_text(text)
            paint, click = open_page(folder / "report.html")
        timing = f"first paint {paint:.0f} ms, a click {click:.0f} ms"
        print(f"{count:6,} records: {spent:.1f} s, {len(text) / 1e6:.1f} MB; {timing}")


def open_page(path: Path) -> tuple[float, float]:
    """Return the milliseconds to the first paint, and from a click on an engine to the chart without it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page()
        page.goto(path.as_uri())
        page.locator("figure.chart").first.scroll_into_view_if_needed()
        page.wait_for_selector("figure[data-drawn]")
        paint, click = float(page.evaluate(PAINT)), float(page.evaluate(CLICK))
        chromium.close()
    return paint, click


if __name__ == "__main__":
    main()
