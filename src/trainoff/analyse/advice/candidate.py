"""Candidates: what could be used, measured or predicted, with what is believed of its time and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainoff.analysis.advice.belief import Belief, Evidence
from trainoff.analysis.format import count, node_size
from trainoff.analysis.groups import Group
from trainoff.analysis.scaling import Estimate, rows_of
from trainoff.analysis.statistics import LEVEL
from trainoff.records import Record


@dataclass(frozen=True)
class Expected:
    """A figure with what encloses it in 95 % of all cases."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to train: an engine in a setting, on so many nodes."""

    group: Group  # of what was measured; of what is predicted the nearest that was, with its nodes and rows changed
    evidence: Evidence
    belief: Belief
    usd_per_hour: float | None  # of all nodes together; None: no price is known
    besides_s: float | None  # what a trial takes besides its training
    estimate: Estimate | None = None  # None: measured

    @property
    def record(self) -> Record:
        return self.group.first

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def nodes(self) -> int:
        return self.record.workers

    @property
    def rows(self) -> float:
        return rows_of(self.record)

    @property
    def measured(self) -> bool:
        return self.estimate is None

    @property
    def extrapolated(self) -> bool:
        return self.estimate is not None and self.estimate.extrapolated

    @property
    def seconds(self) -> Expected:
        """Of the next run that gets there."""
        low, high = np.quantile(self.belief.single, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Expected(float(low), float(np.median(self.belief.typical)), float(high))

    @property
    def usd(self) -> Expected | None:
        """What that costs."""
        if self.usd_per_hour is None:
            return None
        took, rate = self.seconds, self.usd_per_hour / 3600
        return Expected(took.low * rate, took.middle * rate, took.high * rate)

    @property
    def place(self) -> str:
        """On what it runs: `2 nodes of 1 core and 2 GB`, `5 nodes m4.xlarge`."""
        record = self.record
        nodes = count(self.nodes, "node") if self.nodes else "nodes that nobody counted"
        machine, scale = record.params.get("machine"), record.params.get("scale")
        if machine:
            part = f" (at {scale:g} of its size)" if scale and scale != 1 else ""
            return f"{nodes} {machine}{part}"
        size = node_size(record.cores, record.memory_gb)
        return f"{nodes} of {size}" if size else nodes

    def to_json(self) -> dict[str, Any]:
        """For programs; what is not known is null."""
        record, one = self.record, self.estimate
        return {
            "name": self.name,
            "engine": record.engine,
            "mode": record.mode,
            "nodes": self.nodes,
            "cores": record.cores,
            "memory_gb": record.memory_gb,
            "machine": record.params.get("machine"),
            "cluster": record.cluster,
            "rows": record.dataset.get("train_rows") or record.params.get("train_rows"),
            "seconds": vars(self.seconds),
            "usd": vars(self.usd) if self.usd else None,
            "besides_training_s": self.besides_s,
            "runs": self.evidence.runs if self.measured else 0,
            "reached": len(self.evidence.seconds) if self.measured else 0,
            "reach": float(np.mean(self.belief.reach)),
            "predicted": not self.measured,
            "extrapolated": self.extrapolated,
            "expected_error": one.error if one else None,
        }
