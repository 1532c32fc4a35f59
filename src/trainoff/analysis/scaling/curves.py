"""Curves: the runs of one engine in one setting that differ only in their numbers of nodes and rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainoff.analysis.figures import FIGURES, NO_EVIDENCE, Figure, time_figure
from trainoff.analysis.format import settings_text
from trainoff.analysis.groups import as_key, newest, setting_of, varying_keys, without_implied_sizes
from trainoff.analysis.scaling.model import Measurement
from trainoff.records import Record

SIZES = ("workers", "nodes", "hosts", "train_rows")  # keys that may differ along a curve


def _per_thousand(record: Record) -> float | None:
    if record.status != "ok" or not record.train_s or not record.samples_seen:
        return None
    return 1000 * record.train_s / record.samples_seen


PER_1000 = time_figure("per_1000_samples", "seconds per 1,000 samples", "per sample", _per_thousand)


@dataclass(frozen=True)
class Curve:
    """The records of one curve."""

    engine: str
    workload: str
    label: dict[str, Any]  # how it differs from other curves of this engine and workload
    records: tuple[Record, ...]
    censored: tuple[Record, ...]  # failed, or never reached the target
    figure: Figure

    @property
    def setting(self) -> str:
        """The keys and values that distinguish it."""
        return settings_text(self.label)

    @property
    def name(self) -> str:
        return f"{self.engine} with {self.setting}" if self.setting else self.engine

    @property
    def measurements(self) -> list[Measurement]:
        found: dict[tuple[int, float], list[float]] = {}
        for record in self.records:
            found.setdefault((record.workers, self.rows(record)), []).append(self.seconds(record))
        return [Measurement(*place, tuple(runs), self.grows) for place, runs in sorted(found.items())]

    @property
    def grows(self) -> bool:
        """Whether every node has its own batch, so that more nodes make fewer steps."""
        return isinstance(_batch(self.records), str)

    @property
    def counts(self) -> list[int]:
        return sorted({record.workers for record in self.records})

    @property
    def overhead_s(self) -> float:
        """The median time of a trial besides its training: starting, loading, testing."""
        return statistics.median(max((each.cold_s or 0.0) - (each.train_s or 0.0), 0.0) for each in self.records)

    @property
    def spreads(self) -> bool:
        return self.records[0].mode != "single"

    @property
    def key(self) -> str:
        """The study key that sets the number of nodes."""
        return nodes_key(self.records[0])

    def rows(self, record: Record) -> float:
        """Return the rows of a record; for seconds per sample they do not matter and are 1."""
        return 1.0 if self.figure.name == PER_1000.name else rows_of(record)

    def seconds(self, record: Record) -> float:
        """Return the figure of a record on the curve."""
        value = self.figure.value(record)
        assert value is not None
        return value

    def split(self, held: Iterable[int]) -> tuple[list[Measurement], list[Measurement]]:
        """Split the measurements into those to fit and those whose node count is to be held out."""
        out, every = set(held), self.measurements
        return [each for each in every if each.nodes not in out], [each for each in every if each.nodes in out]


def nodes_key(record: Record) -> str:
    """Return the study key for the nodes of such a record: `nodes` in a lab, `workers` elsewhere."""
    return "nodes" if record.cluster == "lab" else "workers"


def rows_of(record: Record) -> float:
    """Return the number of training rows; 1 if it is not on record."""
    rows = record.dataset.get("train_rows") or record.params.get("train_rows")
    return float(rows) if rows else 1.0


def curves(records: Iterable[Record], figure: Figure | Callable[[Record], Figure] = FIGURES["train_s"]) -> list[Curve]:
    """Return the curves in a set of records, in the order in which they first appear.

    `figure` is a time, or a function that returns the time for a record, since the metric depends on the workload.
    """
    counted = [record for record in newest(records) if record.workers]  # a published document may not state it
    kept = [record for record in counted if record.status not in NO_EVIDENCE]
    found: dict[str, list[Record]] = {}
    for record, key in zip(kept, _keys(kept), strict=True):
        found.setdefault(key, []).append(record)
    families: dict[tuple[str, str], list[list[Record]]] = {}
    for members in found.values():
        families.setdefault((members[0].engine, members[0].workload), []).append(members)
    return [_curve(members, family, figure) for family in families.values() for members in family]


def _curve(members: list[Record], family: list[list[Record]], figure: Figure | Callable[[Record], Figure]) -> Curve:
    first = members[0]
    figure = figure if isinstance(figure, Figure) else figure(first)
    good: list[Record] = []
    bad: list[Record] = []
    for record in members:
        (good if 0 < (figure.value(record) or 0) < math.inf else bad).append(record)
    return Curve(first.engine, first.workload, _label(members, family), tuple(good), tuple(bad), figure)


def _keys(records: Sequence[Record]) -> list[str]:
    """Return a key for each record that is the same along a curve.

    A batch is either shared by all workers or grows with their number. The record does not say which: it is what
    makes fewer curves of the records that are otherwise alike.
    """
    texts = [as_key(_base(record)) for record in records]
    batches = [float(record.params.get("batch_size") or 0.0) for record in records]
    shared: dict[str, set[float]] = {}
    per_worker: dict[str, set[float]] = {}
    for record, text, batch in zip(records, texts, batches, strict=True):
        shared.setdefault(text, set()).add(batch)
        per_worker.setdefault(text, set()).add(batch / record.workers)
    keys = []
    for record, text, batch in zip(records, texts, batches, strict=True):
        grows = len(per_worker[text]) < len(shared[text])
        keys.append(f"{text} {batch / record.workers if grows else batch} {grows}")
    return keys


def _base(record: Record) -> dict[str, Any]:
    """Return the setting without sizes. Of listed nodes that differ only in the first, the first counts."""
    setting = setting_of(record)
    listed = setting.get("nodes")
    base = {key: value for key, value in setting.items() if key not in (*SIZES, "batch_size")}
    if isinstance(listed, list):
        base.pop("memory_gb", None)
        rest = [as_key(node) for node in listed[1:]]
        base["nodes"] = listed[:1] if len(set(rest)) <= 1 else listed
    return base


def _label(members: list[Record], family: list[list[Record]]) -> dict[str, Any]:
    """Return the keys in which a curve differs from the others of its engine and workload."""
    if len(family) == 1:
        return {}
    bases = [{**_base(each[0]), "batch_size": _batch(each)} for each in family]
    keys = without_implied_sizes(varying_keys(bases), bases)
    base = next(base for base, each in zip(bases, family, strict=True) if each is members)
    return {key: base[key] for key in keys if key in base}


def _batch(records: Sequence[Record]) -> int | str | None:
    """Return the batch size of a curve as a study states it: a number, or a number per node."""
    sizes = {record.params.get("batch_size") for record in records}
    if len(sizes) == 1:
        return sizes.pop()
    first = records[0]
    return f"{first.params['batch_size'] / first.workers:g} per node"
