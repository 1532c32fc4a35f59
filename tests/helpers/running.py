"""Real runs in three lines: a study from a string, the command line as a user types it, its records."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from trainoff import engines
from trainoff.analysis import newest
from trainoff.cli import main
from trainoff.reproductions.published import read_records

PLUGIN = Path(__file__).parents[1] / "plugin"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HANGS_S = 300.0  # longer than anything takes that happens at all, on one busy core too
BEST = {"mnist-mlp": "0.98", "mnist-cnn": "0.985"}  # the best targets
SMALL = """
workload = "digits-mlp"
engines = [{engines}]
targets = [0.3]
[params]
epochs = 2
train_rows = 300
{more}
"""


def study(folder: Path, *engines: str, more: str = "", name: str = "tiny") -> Path:
    """A study file with a small workload; `more` goes on in the [params] table."""
    named = ", ".join(f'"{engine}"' for engine in engines)
    path = folder / f"{name}.toml"
    path.write_text(SMALL.format(engines=named, more=more))
    return path


def environment(**more: str) -> dict[str, str]:
    """The environment of a user who has installed the misbehaving engines, too."""
    paths = [str(PLUGIN), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def command(*words: object) -> list[str]:
    return [sys.executable, "-P", "-m", "trainoff", *map(str, words)]


def trainoff(*words: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a trainoff command to its end."""
    return subprocess.run(
        command(*words), capture_output=True, text=True, env=environment(**more), cwd=cwd, timeout=6 * HANGS_S
    )


def invoke(*words: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a trainoff command that starts no trial, as `trainoff` does, but in this process: without a start of Python.

    What such a command says is the same there; what Python's start, signals and odd surroundings do to it is not seen.
    """
    told = [str(word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    before = os.environ.copy(), Path.cwd(), sys.path[:], {each: signal.getsignal(each) for each in SIGNALS}
    try:
        os.environ.update(environment(**more))
        sys.path.insert(0, str(PLUGIN))
        engines.forget()
        if cwd:
            os.chdir(cwd)
        with redirect_stdout(out), redirect_stderr(err):
            code = main(told)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        environ, folder, sys.path[:], handlers = before
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        engines.forget()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess(told, code, out.getvalue(), err.getvalue())


def records(out: Path) -> list[dict[str, Any]]:
    """The newest attempts below a folder, as `show --json` prints them."""
    found, damaged = read_records(out)
    assert damaged == []
    made: list[dict[str, Any]] = json.loads(json.dumps([record.to_json() for record in newest(found)]))
    return made


def only_record(out: Path) -> dict[str, Any]:
    (record,) = records(out)
    return record


def survivors(folder: Path) -> list[str]:
    """Processes of trials that were staged below a folder and still live, daemons and workers included."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        words = " ".join(process.info["cmdline"] or [])
        events = (process.info["environ"] or {}).get("TRAINOFF_EVENTS", "")
        if ("trainoff.runner" in words and str(folder) in words) or events.startswith(str(folder)):
            found.append(f"{process.info['pid']} {words}")
    return found


def assert_nothing_survives(folder: Path) -> None:
    """Soon no process of a trial below the folder lives."""
    assert_soon_nothing(lambda: survivors(folder))


def assert_soon_nothing(left: Callable[[], list[str]]) -> None:
    """What is left becomes nothing."""
    deadline = time.monotonic() + HANGS_S
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.1)  # the system tells nobody when a process that is not a child has ended


def wait_until(condition: Callable[[], object], run: subprocess.Popen[Any], seconds: float = HANGS_S) -> None:
    """Wait for something to happen during a run; fails if the run ends before it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert run.poll() is None, "the run ended first"
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def give_tickets(gate: Path, count: int = 1) -> None:
    """Let so many trials that wait at the gate go on."""
    for _ in range(count):
        (gate / uuid4().hex).touch()


def training(out: Path) -> bool:
    """Whether a trial is in its training."""
    for events in out.glob("tiny/.staging/*/events.jsonl"):
        with suppress(FileNotFoundError):  # it has become a record meanwhile
            if '"name": "train"' in events.read_text():
                return True
    return False


def members(folder: Path, role: str, program: str = "") -> list[psutil.Process]:
    """The processes of a role that work for trials below a folder; those that run a program, if it is named."""
    found = []
    if role == "driver":
        return [each for each in psutil.process_iter(["cmdline"]) if _is_driver(each.info["cmdline"] or [], folder)]
    for process in psutil.process_iter(["cmdline", "environ"]):
        mine = process.info["environ"] or {}
        ours = mine.get("TRAINOFF_EVENTS", "").startswith(str(folder)) and mine.get("TRAINOFF_ROLE") == role
        if ours and program in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def _is_driver(words: list[str], folder: Path) -> bool:
    return "trainoff.runner.trial_main" in words and words[-1].startswith(str(folder))


def member(folder: Path, role: str) -> psutil.Process:
    """The first process of a role in the trial below a folder."""
    return members(folder, role)[0]


def disturbed(
    folder: Path,
    path: Path,
    victim: Callable[[], psutil.Process],
    number: signal.Signals = signal.SIGKILL,
    held_at: int = 60,
    begun: Callable[[], object] | None = None,
    replaced: bool = False,
) -> dict[str, Any]:
    """The record of a study's only trial, during which somebody was sent a signal, after nothing of it was left.

    The trial's engine is one of tests/plugin/held.py: it stands still before the step `held_at` until that was done,
    which is when it stands there, or when it has `begun`; or, where the victim is to be `replaced`, until another one
    stands in its place.
    """
    held = folder / "held"
    held.mkdir()
    waits = environment(HELD=str(held), HELD_AT=str(held_at), HELD_STUCK="yes" if number == signal.SIGSTOP else "")
    words = command("run", path, "--out", folder / "out", "--set", f"stall_s={4 * HANGS_S}")
    run = subprocess.Popen(words, env=waits, stdout=subprocess.DEVNULL)
    try:
        wait_until(begun or (lambda: standing(folder)), run)
        chosen = victim()
        place = held / f"at-{chosen.environ().get('TRAINOFF_ROLE')}"
        if replaced:
            wait_until(place.exists, run)
        os.kill(chosen.pid, number)
        if replaced:
            place.unlink()
            wait_until(place.exists, run)
        (held / "released").touch()
        run.wait(2 * HANGS_S)
    finally:
        run.kill()  # where the test has failed; otherwise it has ended
    assert_nothing_survives(folder)
    assert list((folder / "out" / "tiny" / ".staging").iterdir()) == []
    return only_record(folder / "out")


def standing(folder: Path) -> bool:
    """Whether a disturbed trial below a folder stands still."""
    return any((folder / "held").glob("at-*"))


def checkpointed(folder: Path) -> bool:
    """Whether a disturbed trial below a folder stands still, and has a checkpoint to go back to."""
    return standing(folder) and any(folder.glob("out/tiny/.staging/*/checkpoint.npz"))


def assert_nothing_listens_outside(process: psutil.Process) -> None:
    """A trial's processes live in another network than this one, and listen only on its loopback."""
    assert Path(f"/proc/{process.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    listed = subprocess.run(
        ["nsenter", "-t", str(process.pid), "-n", "ip", "-o", "link"], capture_output=True, text=True, check=True
    )
    assert [line.split(":")[1].strip() for line in listed.stdout.splitlines()] == ["lo"]


def assert_it_went_on(record: dict[str, Any], epochs: int) -> None:
    """After one restart from a checkpoint of at most fifty steps before, a training of 300 rows came to its end."""
    assert record["status"] == "ok", record["reason"]
    assert record["counts"]["restarts"] == 1
    assert 0 <= record["counts"]["steps_redone"] <= 100
    assert 0 < record["counts"]["recovery_s"] < record["train_s"]
    assert record["samples_seen"] == epochs * 300


def assert_targets_are_reached(folder: Path, engine: str, workload: str) -> None:
    """One, two and four workers reach the best target of a workload by its recipe."""
    path = folder / "targets.toml"
    path.write_text(f'engines = ["{engine}"]\nworkload = "{workload}"\n[grid]\nworkers = [1, 2, 4]\n')
    assert trainoff("run", path, "--out", folder / "out").returncode == 0
    for record in records(folder / "out"):
        assert record["time_to_target"][BEST[workload]] is not None, record["reason"]


def kill_choice(name: str) -> random.Random:
    """Choices of whom to kill and when, other ones each time; TRAINOFF_KILL_SEED, printed, brings them back."""
    seed = os.environ.get("TRAINOFF_KILL_SEED", str(time.time_ns()))
    print(f"TRAINOFF_KILL_SEED={seed}")
    return random.Random(f"{seed} {name}")
