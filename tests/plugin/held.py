"""Engines that train like those they are named after, but wait before a step until a test or a fault has struck.

So a kill or a fault meets a running training, on a fast machine and on a slow one. The processes that train wait
before they make a step, in one of two ways:

- for a test: with $HELD, a folder, every process waits before step $HELD_AT until the test has made the file
  `released` there. A process that waits has made a file `at-ROLE`. Waiting processes are not taken for stuck, unless
  $HELD_STUCK is set. Afterwards a worker of tf-ps that has done its part of a step has a file `done-NUMBER`.
- for a fault of the study: from step $HELD_AT on, a process makes one step in a tenth of a second, and does not make
  the last, until the trial's events report the fault.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainoff.engines.dask import DaskAverage, DaskTorch
from trainoff.engines.ray import RayTorch
from trainoff.engines.shared import recovery
from trainoff.engines.spark import SparkAverage, SparkTorch
from trainoff.engines.tf_cluster import TfAllReduce, TfPs, ps_context, ps_modes
from trainoff.engines.tf_on_spark import TfOnSpark
from trainoff.engines.torch_ddp import TorchDdp

HANGS_S = 300.0  # then the test has failed


@dataclass
class HeldRates:
    """The learning rates: every engine reads one before it makes a step, in the process that makes it."""

    rates: Any
    at: int  # the step before which to wait
    folder: Path | None  # of the test; None: wait for a fault
    events: Path  # the trial's events so far
    patient: bool  # waiting processes are not taken for stuck
    free: bool = False

    def __len__(self) -> int:
        return len(self.rates)

    def __getitem__(self, index: int) -> Any:
        if not self.free and index + 1 >= self.at:
            self._wait(last=index + 1 == len(self.rates))
        return self.rates[index]

    def _wait(self, last: bool) -> None:
        if self.patient:
            be_patient()
        start = time.monotonic()
        if self.folder:
            (self.folder / f"at-{os.environ.get('TRAINOFF_ROLE', os.getpid())}").touch()
            report_parts(self.folder)
        while not self._released():
            time.sleep(0.02)
            if not self.folder and not last and time.monotonic() - start > 0.1:
                return
            assert time.monotonic() - start < HANGS_S, "nothing was ever done to this training"

    def _released(self) -> bool:
        if self.folder:
            self.free = (self.folder / "released").exists()
        else:
            with suppress(OSError):
                self.free = '"kind": "fault"' in self.events.read_text()
        return self.free


def be_patient() -> None:
    """Let no worker of this process be taken for stuck."""
    for module in (recovery, ps_modes):
        module.STUCK_S = HANGS_S


def report_parts(folder: Path) -> None:
    """Let the coordinator of tf-ps make a file when a worker has done its part of a step."""
    add = ps_context.WorkerSeconds.add

    def add_and_report(self: Any, worker: int, *seconds: float) -> None:
        (folder / f"done-{worker}").touch()
        add(self, worker, *seconds)

    ps_context.WorkerSeconds.add = add_and_report  # type: ignore[method-assign]  # only for this training


class Held:
    """Mix-in that puts held learning rates into the job."""

    def open(self, job: Any, watch: Any) -> None:
        folder = os.environ.get("HELD")
        patient = bool(folder) and not os.environ.get("HELD_STUCK")
        rates = HeldRates(
            job.rates,
            int(os.environ["HELD_AT"]),
            Path(folder) if folder else None,
            job.folder / "events.jsonl",
            patient,
        )
        if patient:
            be_patient()
        super().open(replace(job, rates=rates), watch)  # type: ignore[misc]  # the engine beside this mix-in has it


class HeldDaskAverage(Held, DaskAverage):
    name = "held-dask-average"


class HeldDaskTorch(Held, DaskTorch):
    name = "held-dask-torch"


class HeldRayTorch(Held, RayTorch):
    name = "held-ray-torch"


class HeldSparkAverage(Held, SparkAverage):
    name = "held-spark-average"


class HeldSparkTorch(Held, SparkTorch):
    name = "held-spark-torch"


class HeldTfAllReduce(Held, TfAllReduce):
    name = "held-tf-allreduce"


class HeldTfPs(Held, TfPs):
    name = "held-tf-ps"


class HeldTfOnSpark(Held, TfOnSpark):
    name = "held-tf-on-spark"


class HeldTorchDdp(Held, TorchDdp):
    name = "held-torch-ddp"
