"""The tests under conditions that must make no difference: `python tests/conditions.py [check|test] [condition ...]`.

Every condition runs a target of the Makefile in a fresh clone of what is committed, for a test that passes by luck
passes where its author sits. The log of each is kept, and its last lines are printed. Two hours with `test`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent.parent
BUSY = "while True: pass"


@contextmanager
def busy() -> Iterator[None]:
    """A program on every CPU that wants all of it, at normal priority."""
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def clone(folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", HERE, folder], check=True)
    return folder


def start(clones: Sequence[Path], logs: Path, *words: str, before: Sequence[str] = ()) -> list[subprocess.Popen[bytes]]:
    """Start make in every clone, each with a log named after it."""
    started = []
    for each in clones:
        with (logs / f"{each.name}.log").open("wb") as log:
            told = {**os.environ, "TRAINOFF_STRICT": "1"}
            started.append(
                subprocess.Popen([*before, "make", *words], cwd=each, stdout=log, stderr=subprocess.STDOUT, env=told)
            )
    return started


def run(condition: str, target: str, folder: Path, logs: Path) -> list[int]:
    """The exit codes of make under a condition; a run beside another has two."""
    name = re.sub(r"\W+", "-", condition)
    clones = [clone(folder / f"{name}{place}") for place in (("-a", "-b") if condition == "twice at once" else ("",))]
    seed = re.match(r"order (\d+)", condition)
    words = [target, *(["ORDER=random", f"SEED={seed[1]}"] if seed else [])]
    if condition == "busy":
        with busy():
            return [each.wait() for each in start(clones, logs, *words)]
    before = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if condition == "one core" else []
    return [each.wait() for each in start(clones, logs, *words, before=before)]


CONDITIONS = ("as it is", "one core", "busy", "order 1", "order 2", "order 3", "twice at once")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", nargs="?", default="test", choices=("check", "test"))
    parser.add_argument("condition", nargs="*", default=CONDITIONS, help=", ".join(CONDITIONS) + "; order takes a seed")
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
        for log in sorted(options.logs.glob(re.sub(r"\W+", "-", condition) + "*.log")):
            lines = log.read_text(errors="replace").splitlines()
            told = [line for line in lines if line.startswith(("FAILED", "ERROR", "Using --randomly-seed"))]
            print(*(f"    {line}" for line in [*told, *lines[-1:]]), sep="\n", flush=True)
        failed = failed or any(codes)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
