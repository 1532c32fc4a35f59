"""How long processes of a trial live after a `kill -9` of trainoff.

    python benchmarks/kill.py [--kills 20] [--engine torch-ddp]

It starts a training on two workers as a user does and kills the process of `trainoff run` once it trains. The time is
from the kill until no process of the trial is left: workers, their children and the supervisors.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

STUDY = """workload = "digits-mlp"
engines = ["{engine}"]
[params]
workers = 2
epochs = 100000
"""


def count_processes(folder: Path) -> int:
    """Return how many processes work for trials below a folder."""
    found = 0
    for process in psutil.process_iter(["cmdline", "environ"]):
        argv, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        found += variables.get("TRAINOFF_EVENTS", "").startswith(str(folder)) or (
            any(str(folder) in argument for argument in argv) and "trainoff.runner" in " ".join(argv)
        )
    return found


def kill(engine: str, folder: Path) -> tuple[int, float]:
    """Kill one run in its training; return its number of processes and the seconds until none was left."""
    path, out = folder / "kill.toml", folder / "out"
    path.write_text(STUDY.format(engine=engine))
    argv = [sys.executable, "-m", "trainoff", "run", str(path), "--out", str(out)]
    run = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    while not any(folder.glob("out/kill/.staging/*/snapshot-0001.f32")):
        if run.poll() is not None:
            raise SystemExit(f"the run ended before it trained; `trainoff show {out}` says why")
        time.sleep(0.02)
    processes = count_processes(folder)
    run.kill()
    start = time.monotonic()
    run.wait()
    while count_processes(folder):
        pass
    return processes, time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine", default="torch-ddp")
    options = parser.parse_args()
    seconds, processes = [], 0
    for _ in range(options.kills):
        with tempfile.TemporaryDirectory() as folder:
            processes, took = kill(options.engine, Path(folder).resolve())
            seconds.append(took)
    middle, most = statistics.median(seconds), max(seconds)
    print(
        f"{options.engine}, {len(seconds)} kills, {processes} processes: nothing left after {middle:.2f} s "
        f"(median), {most:.2f} s at most"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
