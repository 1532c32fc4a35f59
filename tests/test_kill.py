"""kill -9 at random moments: nothing survives, nothing half-written is readable, the next run completes the study.

One moment of each here; `make soak` takes twenty of each.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from running import (
    assert_nothing_survives,
    command,
    environment,
    kill_choice,
    records,
    study,
    survivors,
    trainoff,
    wait_until,
)
from trainoff.conduct.warden import Orders
from trainoff.records import scan

MOMENTS = [
    pytest.param(0, id="moment0"),
    *(pytest.param(number, id=f"moment{number}", marks=pytest.mark.soak) for number in range(1, 20)),
]
TRIALS = "[grid]\nseed = [0, 10, 20]"

pytestmark = pytest.mark.namespace


def start(path: Path, out: Path, **more: str) -> subprocess.Popen[bytes]:
    words = command("run", path, "--out", out)
    return subprocess.Popen(words, env=environment(**more), stdout=subprocess.DEVNULL)


def find(module: str, folder: Path) -> list[psutil.Process]:
    """The processes of a module that work for trials below a folder, parents first."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if module in (process.info["cmdline"] or []) and str(folder) in " ".join(process.info["cmdline"])
    ]


def assert_every_record_is_whole(out: Path) -> None:
    for study_folder in out.glob("*"):
        _, damaged = scan(study_folder)
        assert damaged == []


def assert_next_run_completes(path: Path, out: Path) -> None:
    done = trainoff("run", path, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["status"] for record in records(out)] == ["ok"] * 3
    assert list((out / "tiny" / ".staging").iterdir()) == [], "a killed run left its scratch folder"


@pytest.fixture(scope="module")
def length(tmp_path_factory) -> float:
    """How long the study takes here when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    began = time.monotonic()
    assert start(study(folder, "family", more=TRIALS), folder / "out").wait(120) == 0
    return time.monotonic() - began


@pytest.mark.parametrize("number", MOMENTS)
def test_the_conductor_is_killed(tmp_path, number, length):
    path, out = study(tmp_path, "family", more=TRIALS), tmp_path / "out"
    when = kill_choice(f"conductor {number}").uniform(0.0, length)
    run = start(path, out)
    time.sleep(when)
    while run.poll() is not None:  # it was faster than the undisturbed one: try again, a little earlier
        shutil.rmtree(out)
        when *= 0.9
        run = start(path, out)
        time.sleep(when)
    run.kill()
    run.wait()
    assert_nothing_survives(tmp_path)
    assert_every_record_is_whole(out)
    assert_next_run_completes(path, out)


@pytest.mark.parametrize("victim", ["trial process", "launcher", "warden"])
@pytest.mark.parametrize("number", MOMENTS)
def test_a_process_of_the_trial_is_killed(tmp_path, number, victim):
    module = "trainoff.conduct.child" if victim == "trial process" else "trainoff.conduct.launch"
    wanted = 2 if victim == "warden" else 1  # the warden is the launcher's child, with the same command line
    path, out = study(tmp_path, "family", more=TRIALS), tmp_path / "out"
    run = start(path, out)
    wait_until(lambda: len(find(module, tmp_path)) >= wanted, run)
    time.sleep(kill_choice(f"{victim} {number}").uniform(0.0, 1.2))  # a trial lives about two seconds
    wait_until(lambda: len(find(module, tmp_path)) >= wanted, run)  # where that one has ended, the next
    find(module, tmp_path)[wanted - 1].kill()
    run.wait(60)
    unfinished = [path for path in out.glob("tiny/*/record.json") if '"unfinished": true' in path.read_text()]
    assert len(unfinished) == 1, "the kill left no trace in the records"
    assert_nothing_survives(tmp_path)
    assert_every_record_is_whole(out)
    assert_next_run_completes(path, out)


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_trial_whose_conductor_died_before_it_began_ends_at_once(tmp_path, namespaces):
    orders = Orders(str(tmp_path), namespaces, network=namespaces, memory_bytes=None)
    orders.write()
    os.mkfifo(tmp_path / "events")
    life_line, conductor = os.pipe()
    os.close(conductor)
    launcher = subprocess.Popen(
        [sys.executable, "-P", "-m", "trainoff.conduct.launch", str(tmp_path)], stdin=life_line, env=environment()
    )
    launcher.wait(60)
    assert_nothing_survives(tmp_path)
    os.close(life_line)


def test_the_conductor_is_killed_where_there_are_no_namespaces(tmp_path):
    path, out = study(tmp_path, "family", more=TRIALS), tmp_path / "out"
    run = start(path, out, TRAINOFF_ISOLATION="process-group")
    wait_until(lambda: len(survivors(tmp_path)) >= 4, run)  # warden, trial process, worker, daemon
    run.kill()
    run.wait()
    assert_nothing_survives(tmp_path)
    assert_next_run_completes(path, out)
