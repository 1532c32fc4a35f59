"""Run the tests under conditions that must not matter: `python tests/conditions.py [check|test] [condition ...]`.

Every condition runs a target of the Makefile in a fresh clone of the last commit. All but the first take files and
tests in a random order. The log of each is kept, and its last lines are printed. Takes an hour and a half with `test`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

HERE = Path(__file__).parent.parent
BUSY = "while True: pass"
SEEDS = {"unchanged": (), "one core": (1,), "busy": (2,), "twice at once": (3, 4)}  # a clone each; none: usual order


@contextmanager
def busy() -> Iterator[None]:
    """Keep every CPU busy with a program of normal priority."""
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def start(clone: Path, logs: Path, *argv: str) -> subprocess.Popen[bytes]:
    """Start make in a new clone, with a log named after it."""
    subprocess.run(["git", "clone", "--quiet", HERE, clone], check=True)
    strict = {**os.environ, "TRAINOFF_STRICT": "1"}
    with (logs / f"{clone.name}.log").open("wb") as log:
        return subprocess.Popen(argv, cwd=clone, stdout=log, stderr=subprocess.STDOUT, env=strict)


def run(condition: str, target: str, folder: Path, logs: Path) -> list[int]:
    """Run make under a condition and return its exit codes, one for each clone."""
    orders = [["ORDER=random", f"SEED={seed}"] for seed in SEEDS[condition]] or [[]]
    one_core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if condition == "one core" else []
    with busy() if condition == "busy" else nullcontext():
        started = [
            start(folder / f"{named(condition)}-{place}", logs, *one_core, "make", target, *order)
            for place, order in enumerate(orders, start=1)
        ]
        return [each.wait() for each in started]


def named(condition: str) -> str:
    return condition.replace(" ", "-")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", nargs="?", default="test", choices=("check", "test"))
    parser.add_argument("condition", nargs="*", default=list(SEEDS), help=", ".join(SEEDS))
    parser.add_argument("--logs", type=Path, default=HERE / "build" / "conditions", help="where the logs are kept")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    failed = False
    for condition in options.condition:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            codes = run(condition, options.target, Path(folder), options.logs)
        minutes, seconds = divmod(round(time.monotonic() - began), 60)
        print(f"{condition}: {'failed' if any(codes) else 'passed'} in {minutes}:{seconds:02}", flush=True)
        for log in sorted(options.logs.glob(f"{named(condition)}-*.log")):
            lines = log.read_text(errors="replace").splitlines()
            failures = [line for line in lines if line.startswith(("FAILED", "ERROR", "Using --randomly-seed"))]
            print(*(f"    {line}" for line in [*failures, *lines[-1:]]), sep="\n", flush=True)
        failed = failed or any(codes)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
