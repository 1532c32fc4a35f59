"""Run studies and commands as a user does: a study from a string, the command line, its records."""

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
HANGS_S = 300.0  # a limit that only ends a hang: everything takes less, on one busy core too
REDONE = 9  # after the checkpoint of step 50 in a training that is held before step 60
EVERY = 54  # steps at most between two checkpoints: the mode local writes them at the end of a round of six
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
CHECKPOINTED = """workers = 2
mode = "{mode}"
batch_size = 50
hidden = [400]
snapshot_every = 100000
checkpoint_every = 50
[grid]
epochs = [20]
"""  # the parameters of a long training with checkpoints
LONG = """workers = 2
mode = "sync"
optimizer = "sgd"
batch_size = 50
hidden = [400]
snapshot_every = 100000
[grid]
epochs = [20]
"""  # the parameters of a long training without checkpoints


def study(folder: Path, *engines: str, more: str = "", name: str = "tiny", template: str = SMALL) -> Path:
    """Write a study file, by default with a small workload; `more` continues its [params] table."""
    named = ", ".join(f'"{engine}"' for engine in engines)
    path = folder / f"{name}.toml"
    path.write_text(template.format(engines=named, more=more))
    return path


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a user who has installed the engines of tests/plugin, too."""
    paths = [str(PLUGIN), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "trainoff", *map(str, arguments)]


def trainoff(*arguments: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a trainoff command to its end."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(**more), cwd=cwd, timeout=6 * HANGS_S
    )


def invoke(*arguments: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a trainoff command that starts no trial in this process, which saves a start of Python.

    The output is the same. The effects of Python's start, of signals and of an unusual environment are not tested so.
    """
    argv = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    before = os.environ.copy(), Path.cwd(), sys.path[:], {each: signal.getsignal(each) for each in SIGNALS}
    try:
        os.environ.update(environment(**more))
        sys.path.insert(0, str(PLUGIN))
        engines.forget()
        if cwd:
            os.chdir(cwd)
        with redirect_stdout(out), redirect_stderr(err):
            code = main(argv)
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
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def error_line(capsys: Any, *arguments: object) -> str:
    """Run a command that must fail in this process; return its error, which must be a single line."""
    assert main([str(argument) for argument in arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    return str(error).removeprefix("trainoff: ").strip()


def records(out: Path) -> list[dict[str, Any]]:
    """Return the newest attempts below a folder as `show --json` prints them."""
    found, damaged = read_records(out)
    assert damaged == []
    listed: list[dict[str, Any]] = json.loads(json.dumps([record.to_json() for record in newest(found)]))
    return listed


def only_record(out: Path) -> dict[str, Any]:
    (record,) = records(out)
    return record


def survivors(folder: Path) -> list[str]:
    """Return the processes, daemons and workers included, of trials staged below a folder that are still alive."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        command_line = " ".join(process.info["cmdline"] or [])
        events = (process.info["environ"] or {}).get("TRAINOFF_EVENTS", "")
        if ("trainoff.runner" in command_line and str(folder) in command_line) or events.startswith(str(folder)):
            found.append(f"{process.info['pid']} {command_line}")
    return found


def assert_nothing_survives(folder: Path) -> None:
    """Wait until no process of a trial below a folder is alive."""
    assert_soon_empty(lambda: survivors(folder))


def assert_soon_empty(remaining: Callable[[], list[str]]) -> None:
    """Wait until nothing remains."""
    deadline = time.monotonic() + HANGS_S
    while found := remaining():
        assert time.monotonic() < deadline, found
        time.sleep(0.1)  # there is no notification of the end of a process that is not a child


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)  # a file, a process that is no child or a foreign thread does not notify


def is_alive(pid: int) -> bool:
    """Return whether a process runs, which a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], run: subprocess.Popen[Any], seconds: float = HANGS_S) -> None:
    """Wait for a condition during a run; fail if the run ends first."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert run.poll() is None, "the run ended first"
        assert time.monotonic() < deadline, "it never happened"
        with suppress(subprocess.TimeoutExpired):
            run.wait(timeout=0.05)  # the condition does not notify


def give_permits(permits: Path, count: int = 1) -> None:
    """Let `count` trials of the engine `gated` continue."""
    for _ in range(count):
        (permits / uuid4().hex).touch()


def is_training(out: Path) -> bool:
    """Return whether a trial is in its training."""
    for events in out.glob("tiny/.staging/*/events.jsonl"):
        with suppress(FileNotFoundError):  # it has become a record meanwhile
            if '"name": "train"' in events.read_text():
                return True
    return False


def members(folder: Path, role: str, program: str = "") -> list[psutil.Process]:
    """Return the processes of a role, and of a program if one is named, that work for trials below a folder."""
    found = []
    if role == "driver":
        return [each for each in psutil.process_iter(["cmdline"]) if _is_driver(each.info["cmdline"] or [], folder)]
    for process in psutil.process_iter(["cmdline", "environ"]):
        variables = process.info["environ"] or {}
        of_trial = variables.get("TRAINOFF_EVENTS", "").startswith(str(folder))
        of_role = variables.get("TRAINOFF_ROLE") == role
        if of_trial and of_role and program in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def _is_driver(argv: list[str], folder: Path) -> bool:
    return "trainoff.runner.trial_main" in argv and argv[-1].startswith(str(folder))


def member(folder: Path, role: str) -> psutil.Process:
    """Return the first process of a role in the trial below a folder."""
    return members(folder, role)[0]


def run_and_signal(
    folder: Path,
    path: Path,
    victim: Callable[[], psutil.Process],
    number: signal.Signals = signal.SIGKILL,
    held_at: int = 60,
    begun: Callable[[], object] | None = None,
    replaced: bool = False,
) -> dict[str, Any]:
    """Run a study of one trial, send a signal to one of its processes, and return the record.

    The trial's engine is one of tests/plugin/held.py: it waits before the step `held_at` until the signal was sent.
    The signal is sent when the engine waits, or when `begun` is true. If the victim is to be `replaced`, the engine
    waits until another process has taken its place. Afterwards no process and no staging folder may be left.
    """
    held = folder / "held"
    held.mkdir()
    waits = environment(HELD=str(held), HELD_AT=str(held_at), HELD_STUCK="yes" if number == signal.SIGSTOP else "")
    argv = command("run", path, "--out", folder / "out", "--set", f"stall_s={4 * HANGS_S}")
    run = subprocess.Popen(argv, env=waits, stdout=subprocess.DEVNULL)
    try:
        wait_until(begun or (lambda: is_held(folder)), run)
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
        run.kill()  # it is still running if the test has failed
    assert_nothing_survives(folder)
    assert list((folder / "out" / "tiny" / ".staging").iterdir()) == []
    return only_record(folder / "out")


def signal_after_checkpoint(
    folder: Path,
    engine: str,
    victim: Callable[[], psutil.Process],
    number: signal.Signals = signal.SIGKILL,
    mode: str = "sync",
    held_at: int = 60,
    after: float = 0.0,
    replaced: bool = False,
) -> dict[str, Any]:
    """Run a long training, send a signal to a process `after` seconds after a checkpoint, and return the record."""
    path = study(folder, f"held-{engine}", more=CHECKPOINTED.format(mode=mode))

    def choose() -> psutil.Process:
        time.sleep(after)  # a random moment: the training is held
        return victim()

    return run_and_signal(folder, path, choose, number, held_at, lambda: is_held_after_checkpoint(folder), replaced)


def is_held(folder: Path) -> bool:
    """Return whether the trial below a folder is held before a step."""
    return any((folder / "held").glob("at-*"))


def is_held_after_checkpoint(folder: Path) -> bool:
    """Return whether the trial below a folder is held before a step and has a checkpoint."""
    return is_held(folder) and any(folder.glob("out/tiny/.staging/*/checkpoint.npz"))


def assert_nothing_listens_outside(process: psutil.Process) -> None:
    """Check that a trial's process is in a network namespace of its trial that has only a loopback interface."""
    assert Path(f"/proc/{process.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    listed = subprocess.run(
        ["nsenter", "-t", str(process.pid), "-n", "ip", "-o", "link"], capture_output=True, text=True, check=True
    )
    assert [line.split(":")[1].strip() for line in listed.stdout.splitlines()] == ["lo"]


def assert_recovered(record: dict[str, Any], epochs: int, redone: int = REDONE) -> None:
    """Check that a training of 300 rows ended well after one restart that cost at most `redone` steps."""
    assert record["status"] == "ok", record["reason"]
    assert record["counts"]["restarts"] == 1
    assert 0 <= record["counts"]["steps_redone"] <= redone
    assert 0 < record["counts"]["recovery_s"] < record["train_s"]
    assert record["samples_seen"] == epochs * 300


def assert_targets_are_reached(folder: Path, engine: str, workload: str) -> None:
    """Check that one, two and four workers reach the best target of a workload by its recipe."""
    path = folder / "targets.toml"
    path.write_text(f'engines = ["{engine}"]\nworkload = "{workload}"\n[grid]\nworkers = [1, 2, 4]\n')
    assert trainoff("run", path, "--out", folder / "out").returncode == 0
    for record in records(folder / "out"):
        assert record["time_to_target"][BEST[workload]] is not None, record["reason"]


def kill_choice(name: str) -> random.Random:
    """Return a source of random choices of what to kill and when; TRAINOFF_KILL_SEED, which it prints, repeats them."""
    seed = os.environ.get("TRAINOFF_KILL_SEED", str(time.time_ns()))
    print(f"TRAINOFF_KILL_SEED={seed}")
    return random.Random(f"{seed} {name}")
