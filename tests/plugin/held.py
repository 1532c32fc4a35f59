"""Engines that train like those they are named after, but wait at a step for what a test does to them.

However fast the machine is, a kill or a fault so finds the training under way, and however slow it is, not before its
time. Two ways to wait, both in the processes that learn, before a step is made:

- for a test: with $HELD, a folder, every process stands still before step $HELD_AT until the test has made the file
  `released` there; a process that stands has made a file `at-ROLE`.
  Nobody is given up for standing still, unless $HELD_STUCK says that somebody is meant to be stuck.
- for a fault of the study: from step $HELD_AT on, one step in a tenth of a second is made, and before the last none,
  until the trial's events tell that the fault was done.
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
from trainoff.engines.tf_cluster import TfAllReduce, TfPs, ps_modes
from trainoff.engines.tf_on_spark import TfOnSpark
from trainoff.engines.torch_ddp import TorchDdp

HANGS_S = 300.0  # nobody comes any more


@dataclass
class HeldRates:
    """The learning rates, which every engine asks for before it makes a step, in the process that makes it."""

    rates: Any
    at: int  # the step before which to wait
    folder: Path | None  # of the test; None where a fault is waited for
    events: Path  # what the trial has said so far
    patient: bool  # standing still is nothing to be given up for
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
        while not self._let_go():
            time.sleep(0.02)
            if not self.folder and not last and time.monotonic() - start > 0.1:
                return
            assert time.monotonic() - start < HANGS_S, "nothing was ever done to this training"

    def _let_go(self) -> bool:
        if self.folder:
            self.free = (self.folder / "released").exists()
        else:
            with suppress(OSError):
                self.free = '"kind": "fault"' in self.events.read_text()
        return self.free


def be_patient() -> None:
    """Let nobody in this process be taken for stuck."""
    for module in (recovery, ps_modes):
        module.STUCK_S = HANGS_S


class Held:
    """Puts such learning rates into the job."""

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
        super().open(replace(job, rates=rates), watch)  # type: ignore[misc]  # the engine's


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
