"""kill -9 at random moments: nothing survives, nothing half-written is readable, the next run completes the study.

A few moments here; `make soak` takes twenty of each.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from running import command, environment, records, study, survivors, trainoff
from trainoff.records import scan

MOMENTS = [
    *(pytest.param(number, id=f"moment{number}") for number in range(3)),
    *(pytest.param(number, id=f"moment{number}", marks=pytest.mark.soak) for number in range(3, 20)),
]
LONGEST_S = 7.0  # about as long as the study takes
GONE_WITHIN_S = 5.0

pytestmark = pytest.mark.namespace


@pytest.fixture(scope="module")
def moment():
    """A random moment per case; the seed is printed where a test fails."""
    seed = int(os.environ.get("TRAINOFF_KILL_SEED", time.time()))
    print(f"TRAINOFF_KILL_SEED={seed}")
    return lambda victim, number: random.Random(f"{seed} {victim} {number}").uniform(0.2, LONGEST_S)


def start(path: Path, out: Path, **more: str) -> subprocess.Popen[bytes]:
    words = command("run", path, "--out", out)
    return subprocess.Popen(words, env=environment(**more), stdout=subprocess.DEVNULL)


def assert_nothing_survives(folder: Path) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := survivors(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def assert_every_record_is_whole(out: Path) -> None:
    for study_folder in out.glob("*"):
        _, damaged = scan(study_folder)
        assert damaged == []


def assert_next_run_completes(path: Path, out: Path) -> None:
    done = trainoff("run", path, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["status"] for record in records(out)] == ["ok"] * 3
    assert list((out / "tiny" / ".staging").iterdir()) == [], "a killed run left its scratch folder"


@pytest.mark.parametrize("number", MOMENTS)
def test_the_conductor_is_killed(tmp_path, moment, number):
    path, out = study(tmp_path, "steady", more="[grid]\nseed = [0, 10, 20]"), tmp_path / "out"
    run = start(path, out)
    time.sleep(moment("conductor", number))
    run.kill()
    run.wait()
    assert_nothing_survives(tmp_path)
    assert_every_record_is_whole(out)
    assert_next_run_completes(path, out)


def test_the_conductor_is_killed_where_there_are_no_namespaces(tmp_path):
    path, out = study(tmp_path, "steady", more="[grid]\nseed = [0, 10, 20]"), tmp_path / "out"
    run = start(path, out, TRAINOFF_ISOLATION="process-group")
    while not find("trainoff.conduct.child", tmp_path):
        time.sleep(0.05)
    time.sleep(0.5)
    run.kill()
    run.wait()
    assert_nothing_survives(tmp_path)
    assert_next_run_completes(path, out)


@pytest.mark.parametrize("victim", ["child", "launch"])
@pytest.mark.parametrize("number", MOMENTS)
def test_the_trial_is_killed(tmp_path, moment, number, victim):
    """The trial process itself, and the process that guards it."""
    path, out = study(tmp_path, "steady", more="[grid]\nseed = [0, 10, 20]"), tmp_path / "out"
    run = start(path, out)
    time.sleep(moment(victim, number))
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in find(f"trainoff.conduct.{victim}", tmp_path)[-1:]:
            process.send_signal(signal.SIGKILL)
    run.wait(60)
    assert_nothing_survives(tmp_path)
    assert_every_record_is_whole(out)
    assert_next_run_completes(path, out)


def find(module: str, folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if module in (process.info["cmdline"] or []) and str(folder) in " ".join(process.info["cmdline"])
    ]
