"""The gain of a second worker: torch-ddp with two workers of one thread against torch with one thread.

    python benchmarks/torch_ddp.py [--rounds 3] [--rows 1024] [--epochs 3]

The network is mnist-mlp; --rows are those of a worker and step. Both train turn by turn, and only the training is
compared, not the start. Two workers must make at least 1.5 times the samples per second of one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from trials import run

LEAST = 1.5
STUDY = """
workload = "mnist-mlp"
engines = ["torch", "torch-ddp"]
[params]
epochs = {epochs}
snapshot_every = 1000000
seed = {seed}
[engine.torch]
batch_size = {rows}
[engine.torch-ddp]
batch_size = {both}
workers = 2
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.rounds):
            text = STUDY.format(epochs=options.epochs, seed=seed, rows=options.rows, both=2 * options.rows)
            records = run(Path(folder), f"study-{seed}", text)
            speed = {record.engine: record.samples_per_s or 0.0 for record in records}
            ratios.append(speed["torch-ddp"] / speed["torch"])
            print(f"two workers made {ratios[-1]:.2f} times the samples per second of one", flush=True)
    median = statistics.median(ratios)
    print(f"median {median:.2f}, at least {LEAST} wanted: {'ok' if median >= LEAST else 'TOO SLOW'}")
    return 0 if median >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
