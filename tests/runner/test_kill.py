"""kill -9 at random moments: no process survives, no half-written record is read, the next run completes the study.

One moment of each here; `make soak` tries twenty of each. The trials wait for permits (tests/plugin/misbehaving.py), so
that neither a trial nor the run ends before the kill.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers.running import (
    HANGS_S,
    assert_nothing_survives,
    command,
    environment,
    give_permits,
    is_training,
    kill_choice,
    records,
    study,
    survivors,
    trainoff,
    wait_until,
)
from trainoff.records import scan
from trainoff.runner.supervisor import SupervisorConfig

MOMENTS = [
    pytest.param(0, id="moment0"),
    *(pytest.param(number, id=f"moment{number}", marks=pytest.mark.soak) for number in range(1, 20)),
]
TRIALS = "[grid]\nseed = [0, 10, 20]"

pytestmark = [pytest.mark.namespace, pytest.mark.cluster]


def start(path: Path, out: Path, permits: Path, **more: str) -> subprocess.Popen[bytes]:
    argv = command("run", path, "--out", out)
    return subprocess.Popen(argv, env=environment(PERMITS=str(permits), **more), stdout=subprocess.DEVNULL)


def find(module: str, folder: Path) -> list[psutil.Process]:
    """Return the processes that run a module for trials below a folder, parents first."""
    found = [
        process
        for process in psutil.process_iter(["cmdline", "create_time"])
        if module in (process.info["cmdline"] or []) and str(folder) in " ".join(process.info["cmdline"])
    ]
    return sorted(found, key=lambda process: process.info["create_time"])


def assert_every_record_is_whole(out: Path) -> None:
    for study_folder in out.glob("*"):
        _, damaged = scan(study_folder)
        assert damaged == []


def assert_next_run_completes(path: Path, out: Path) -> None:
    for left in out.glob("tiny/.staging/*"):
        if not (left / "lock").exists():  # it was being made or removed, and would count as abandoned after a minute
            os.utime(left, (0, 0))
    done = trainoff("run", path, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["status"] for record in records(out)] == ["ok"] * 3
    assert list((out / "tiny" / ".staging").iterdir()) == [], "a killed run left its scratch folder"


def recorded(out: Path) -> int:
    return len(list(out.glob("tiny/*/record.json")))


EVENTS = {
    "the run begins": lambda _: True,
    "a trial begins": lambda out: any(out.glob("tiny/.staging/gated-family-*")),
    "a trial trains": is_training,
    "there is a record": lambda out: recorded(out) >= 1,
    "there are two records": lambda out: recorded(out) >= 2,
}


@pytest.mark.parametrize("number", MOMENTS)
def test_the_runner_is_killed(tmp_path, permits, number):
    """The last trial waits, so that it does not end before the kill."""
    path, out = study(tmp_path, "gated-family", more=TRIALS), tmp_path / "out"
    choice = kill_choice(f"runner {number}")
    event, held_at = choice.choice(list(EVENTS)), choice.choice(["train", "close"])
    give_permits(permits, 2)
    run = start(path, out, permits, PERMITS_AT=held_at)
    wait_until(lambda: EVENTS[event](out), run)
    time.sleep(choice.uniform(0.0, 1.5))  # the last trial cannot end before the kill
    run.kill()
    assert run.wait() < 0, "the run ended first"
    assert_nothing_survives(tmp_path)
    assert_every_record_is_whole(out)
    assert_next_run_completes(path, out)


@pytest.mark.parametrize("victim", ["trial process", "outer supervisor", "supervisor"])
@pytest.mark.parametrize("number", MOMENTS)
def test_a_process_of_the_trial_is_killed(tmp_path, permits, number, victim):
    module = "trainoff.runner.trial_main" if victim == "trial process" else "trainoff.runner.supervisor"
    wanted = 2 if victim == "supervisor" else 1  # a child of the outer one with the same command line
    path, out = study(tmp_path, "gated-family", more=TRIALS), tmp_path / "out"
    choice = kill_choice(f"{victim} {number}")
    before, held_at = choice.randrange(3), choice.choice(["train", "close"])
    give_permits(permits, before)
    run = start(path, out, permits, PERMITS_AT=held_at)
    wait_until(lambda: recorded(out) == before and len(find(module, tmp_path)) >= wanted, run)
    time.sleep(choice.uniform(0.0, 1.2))  # the trial is held
    find(module, tmp_path)[wanted - 1].kill()
    give_permits(permits, 3)
    run.wait(HANGS_S)
    unfinished = [path for path in out.glob("tiny/*/record.json") if '"unfinished": true' in path.read_text()]
    assert len(unfinished) == 1, "the kill left no trace in the records"
    assert_nothing_survives(tmp_path)
    assert_every_record_is_whole(out)
    assert_next_run_completes(path, out)


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_trial_whose_runner_died_before_the_start_ends_at_once(tmp_path, namespaces):
    config = SupervisorConfig(str(tmp_path), namespaces, network=namespaces, memory_bytes=None)
    config.write()
    os.mkfifo(tmp_path / "events")
    control_pipe, runner = os.pipe()
    os.close(runner)
    outer = subprocess.Popen(
        [sys.executable, "-P", "-m", "trainoff.runner.supervisor", str(tmp_path)], stdin=control_pipe, env=environment()
    )
    outer.wait(HANGS_S)
    assert_nothing_survives(tmp_path)
    os.close(control_pipe)


def test_the_runner_is_killed_without_namespaces(tmp_path, permits):
    path, out = study(tmp_path, "gated-family", more=TRIALS), tmp_path / "out"
    run = start(path, out, permits, TRAINOFF_ISOLATION="process-group")
    wait_until(lambda: len(survivors(tmp_path)) >= 4, run)  # supervisor, trial process, worker, daemon
    run.kill()
    run.wait()
    assert_nothing_survives(tmp_path)
    assert_next_run_completes(path, out)
