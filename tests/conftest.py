"""What the tests need of the machine, said by markers; in continuous integration nothing may be missing."""

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
ORDER = "TRAINOFF_TEST_ORDER"  # random: the files as pytest-randomly has shuffled them, and not the slowest first
MISSING = "missing here:"  # how the reason begins why a marked test is skipped
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
        items.sort(key=lambda item: [f"tests/{name}::" not in item.nodeid for name in SLOW])


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
