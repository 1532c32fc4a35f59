"""What the tests need of the machine, said by markers; in continuous integration nothing may be missing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from machines import sshd
from running import HANGS_S
from trainoff.clusters import Processes, namespaces
from trainoff.clusters.java import find_java
from trainoff.clusters.lab import register
from trainoff.clusters.spark import SparkFolder, start_standalone

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from pages import Watched

STRICT = "TRAINOFF_STRICT"  # set by .ci/run: a marked test that is skipped fails the run
ORDER = "TRAINOFF_TEST_ORDER"  # random: the files as pytest-randomly has shuffled them, and not the slowest first
MISSING = "missing here:"  # how the reason begins why a marked test is skipped
SLOW = (
    "test_tf_on_spark.py",
    "test_spark.py",
    "test_tf_cluster.py",
    "test_dask.py",
    "test_ray.py",
    "test_run.py",
    "test_run_models.py",
    "test_torch_ddp.py",
    "test_conformance.py",
    "test_faults_run.py",
    "test_cli.py",
    "test_tune.py",
    "test_lab.py",
    "test_hosts.py",
    "test_page.py",
    "test_page_choices.py",
    "test_storage.py",
    "test_export.py",
    "test_view.py",
)  # the slowest first
skipped_here: list[str] = []

# However slow the machine is, an example is not wrong for it; and every run tries the same ones. TRAINOFF_EXPLORE=yes,
# which make soak sets, tries others each time.
hypothesis.settings.register_profile(
    "at leisure",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=not os.environ.get("TRAINOFF_EXPLORE"),
)
hypothesis.settings.load_profile("at leisure")


@cache
def lacks(marker: str) -> str | None:
    """Why tests with a marker cannot run here."""
    if marker == "namespace":
        return namespaces.why_not()
    if marker == "root":
        return None if os.geteuid() == 0 else "needs root"
    if marker == "lab":
        return namespaces.why_not() or register.missing()
    if marker == "java":
        java = find_java()
        return java.lacks if java else "needs Java 17"
    if marker == "sshd":
        return None if sshd() else "needs an sshd, which `make test` unpacks"
    if marker == "browser":
        return None if shutil.which("chromium") else "needs Chromium"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here, and begin with what takes longest: several processes share the files."""
    for item in items:
        for mark in item.iter_markers():
            if reason := lacks(mark.name):
                item.add_marker(pytest.mark.skip(reason=f"{MISSING} {reason}"))
    if os.environ.get(ORDER) != "random":
        items.sort(key=lambda item: [f"/{name}" not in item.nodeid for name in SLOW])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and MISSING in str(report.longrepr):
        skipped_here.append(f"{report.nodeid}: {report.longrepr}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if skipped_here and os.environ.get(STRICT) and exitstatus == 0:
        print("\nskipped, which continuous integration does not allow:", *skipped_here, sep="\n  ")
        session.exitstatus = 1


@pytest.fixture(autouse=True, scope="session")
def _own_places(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tests do not wait for a run that the user has going or a control kernel, and leave the user's cache alone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore Ctrl-C
    os.environ["TRAINOFF_LOCK"] = f"trainoff-tests-{os.getpid()}"
    os.environ["TRAINOFF_CONTROL_S"] = "0.001"
    os.environ["TRAINOFF_SHARED_CLASSES"] = "yes"  # the tests start twenty clusters of Spark
    os.environ["TRAINOFF_RUNTIME"] = str(tmp_path_factory.mktemp("runtime"))
    os.environ["TRAINOFF_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, in a terminal of eighty columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A folder where trials of the engine `gated` wait for tickets in their training."""
    folder = tmp_path / "gate"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)  # whoever still waits there, after a failure, ends


@pytest.fixture
def existing(tmp_path):
    """A Spark cluster of two workers that is not a trial's; yields its address and secret."""
    spark, secret = SparkFolder(tmp_path), "a secret of its owner"
    owner = {"spark.authenticate": "true", "spark.authenticate.secret": secret.replace(" ", "-")}
    spark.configure(owner, secret=False)
    with Processes(2, tmp_path) as cluster:
        yield start_standalone(cluster, spark, 1, 1024), owner["spark.authenticate.secret"]


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
    from pages import Watched

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
    from pages import small_report

    return small_report(tmp_path_factory.mktemp("report") / "made")
