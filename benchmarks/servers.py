"""Updates per second of tf-ps against a bare loop over TensorFlow's own coordinator, turn by turn.

    python benchmarks/servers.py [--rounds 3] [--workers 2] [--batch 128]

The network is mnist-mlp, asynchronous, with one parameter server. The bare loop reads no rows, measures nothing and
takes no snapshots. tf-ps must make at least 0.9 times as many updates.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from trials import run

from trainoff.records import Record
from trainoff.runner.supervisor import KEEP_MEMORY

LEAST = 0.9
BARE = Path(__file__).parent / "bare" / "servers_loop.py"
STUDY = """
name = "tensorflow-bench"
workload = "mnist-mlp"
engines = ["tf-ps"]
[params]
mode = "async"
workers = {workers}
batch_size = {batch}
optimizer = "sgd"
schedule = "constant"
learning_rate = 0.1
epochs = 2
snapshot_every = 1000000
checkpoint_every = 0
seed = {seed}
"""


def ours(folder: Path, workers: int, batch: int, seed: int) -> Record:
    """Run one trial of tf-ps."""
    (record,) = run(folder, f"study-{seed}", STUDY.format(workers=workers, batch=batch, seed=seed))
    return record


def bare(workers: int, batch: int, updates: int) -> float:
    """Return the updates per second of the bare loop under the same conditions."""
    argv = [sys.executable, str(BARE), str(workers), str(batch), str(updates)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**KEEP_MEMORY, **os.environ})
    return float(done.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            record = ours(Path(folder), options.workers, options.batch, number)
            speed = (record.steps or 0) / (record.train_s or 1.0)
            other = bare(options.workers, options.batch, record.steps or 0)
            ratios.append(speed / other)
            parts = {name: sum(values.values()) for name, values in record.breakdowns.items() if name.endswith("_s")}
            shares = ", ".join(f"{name[:-2]} {seconds / sum(parts.values()):.0%}" for name, seconds in parts.items())
            print(
                f"tf-ps {speed:5.1f} updates/s ({shares}); bare loop {other:5.1f}; ratio {ratios[-1]:.2f}", flush=True
            )
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.2f}, at least {LEAST} wanted: {'ok' if ratio >= LEAST else 'TOO SLOW'}")
    return 0 if ratio >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
