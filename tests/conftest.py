"""Skip tests that need what is missing here, order the files, and isolate the tests from the user's runs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest

from helpers.sshd import sshd
from trainoff.clusters import namespaces
from trainoff.clusters.java import find_java
from trainoff.clusters.lab import register

STRICT = "TRAINOFF_STRICT"  # set by .ci/run: a marked test that is skipped fails the run
ORDER = "TRAINOFF_TEST_ORDER"  # random: the files in pytest-randomly's order instead of the slowest first
MISSING = "missing here:"  # how the reason of a skipped test begins
SLOW = (
    "engines/test_tf_on_spark.py",
    "engines/test_spark.py",
    "engines/test_tf_cluster.py",
    "engines/test_dask.py",
    "engines/test_ray.py",
    "runner/test_runner.py",
    "runner/test_models_in_trials.py",
    "engines/test_torch_ddp.py",
    "engines/test_conformance.py",
    "runner/test_faults_in_trials.py",
    "cli/test_cli.py",
    "cli/test_tune.py",
    "clusters/test_lab.py",
    "clusters/test_ssh.py",
    "report/test_html.py",
    "report/test_html_choices.py",
    "engines/test_storage.py",
    "report/test_export.py",
    "report/test_live.py",
)  # the slowest first
skipped_here: list[str] = []

# No example fails for being slow, and every run tries the same ones. TRAINOFF_EXPLORE=yes, which make soak sets, tries
# others each time.
hypothesis.settings.register_profile(
    "trainoff",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=not os.environ.get("TRAINOFF_EXPLORE"),
)
hypothesis.settings.load_profile("trainoff")


@cache
def missing_for(marker: str) -> str | None:
    """Return why tests with a marker cannot run here."""
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
    """Skip what cannot run here, and begin with the slowest files: several processes share them."""
    for item in items:
        for mark in item.iter_markers():
            if reason := missing_for(mark.name):
                item.add_marker(pytest.mark.skip(reason=f"{MISSING} {reason}"))
    if os.environ.get(ORDER) != "random":
        items.sort(key=lambda item: [f"tests/{name}::" not in item.nodeid for name in SLOW])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and MISSING in str(report.longrepr):
        skipped_here.append(f"{report.nodeid}: {report.longrepr}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if skipped_here and os.environ.get(STRICT) and exitstatus == 0:
        print("\nskipped, which continuous integration does not allow:", *skipped_here, sep="\n  ")
        session.exitstatus = 1


@pytest.fixture(autouse=True, scope="session")
def _isolated_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a lock, a runtime folder and a cache of the tests' own, and a control kernel that takes no time."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes its background jobs ignore Ctrl-C
    os.environ["TRAINOFF_LOCK"] = f"trainoff-tests-{os.getpid()}"
    os.environ["TRAINOFF_CONTROL_S"] = "0.001"
    os.environ["TRAINOFF_SHARED_CLASSES"] = "yes"  # the tests start twenty Spark clusters
    os.environ["TRAINOFF_RUNTIME"] = str(tmp_path_factory.mktemp("runtime"))
    os.environ["TRAINOFF_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """An empty working directory, in a terminal of eighty columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def permits(tmp_path: Path) -> Iterator[Path]:
    """A folder in which trials of the engine `gated` wait for permits during their training."""
    folder = tmp_path / "permits"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)  # trials that still wait, after a failure, end
