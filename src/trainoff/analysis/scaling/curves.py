"""Curves: the runs of one engine in one setting that differ only in how many nodes and rows they had."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainoff.analysis.figures import FIGURES, Figure
from trainoff.analysis.format import seconds, settings_text
from trainoff.analysis.groups import newest, setting_of, varying_keys, without_implied_sizes
from trainoff.analysis.scaling.model import Measurement
from trainoff.records import Record

SIZES = ("workers", "nodes", "hosts", "train_rows")  # what may differ along a curve


def _per_thousand(record: Record) -> float | None:
    if record.status != "ok" or not record.train_s or not record.samples_seen:
        return None
    return 1000 * record.train_s / record.samples_seen


PER_1000 = Figure(
    "per_1000_samples",
    "seconds per 1,000 samples",
    _per_thousand,
    seconds,
    "took {ratio} times as long as {other} per sample",
    "was {ratio} times faster than {other} per sample",
)


@dataclass(frozen=True)
class Curve:
    """Records that lie on one curve, those that say nothing of its figure apart."""

    engine: str
    workload: str
    apart: dict[str, Any]  # what sets it apart from other curves of this engine and workload
    records: tuple[Record, ...]
    censored: tuple[Record, ...]  # failed, or never got to the target
    figure: Figure

    @property
    def setting(self) -> str:
        """What sets it apart, in words."""
        return settings_text(self.apart)

    @property
    def name(self) -> str:
        """The engine, with what sets this curve apart."""
        return f"{self.engine} with {self.setting}" if self.setting else self.engine

    @property
    def measurements(self) -> list[Measurement]:
        """What was measured, by nodes and rows."""
        found: dict[tuple[int, float], list[float]] = {}
        for record in self.records:
            found.setdefault((record.workers, self.rows(record)), []).append(self.seconds(record))
        return [Measurement(*place, tuple(runs), self.grows) for place, runs in sorted(found.items())]

    @property
    def grows(self) -> bool:
        """Whether every node brings a batch of its own: the more nodes, the fewer steps."""
        return isinstance(_batch(self.records), str)

    @property
    def counts(self) -> list[int]:
        """The node counts that were measured."""
        return sorted({record.workers for record in self.records})

    @property
    def overhead_s(self) -> float:
        """What a trial takes besides what is modelled: starting, loading, testing."""
        return statistics.median(max((one.cold_s or 0.0) - (one.train_s or 0.0), 0.0) for one in self.records)

    @property
    def spreads(self) -> bool:
        """Whether it could have more nodes at all."""
        return self.records[0].mode != "single"

    @property
    def key(self) -> str:
        """The key of a study that says how many nodes there are."""
        return nodes_key(self.records[0])

    def rows(self, record: Record) -> float:
        """The work of a record; with seconds per sample it is the same for all."""
        return 1.0 if self.figure.name == PER_1000.name else rows_of(record)

    def seconds(self, record: Record) -> float:
        """The figure of a record that is on the curve."""
        value = self.figure.value(record)
        assert value is not None
        return value

    def split(self, held: Iterable[int]) -> tuple[list[Measurement], list[Measurement]]:
        """What to fit, and what to keep from the fit because its node count is to be held out."""
        gone = set(held)
        every = self.measurements
        return [one for one in every if one.nodes not in gone], [one for one in every if one.nodes in gone]


def nodes_key(record: Record) -> str:
    """What a study calls the nodes of such a record: elsewhere than in a lab they are its workers."""
    return "nodes" if record.cluster == "lab" else "workers"


def rows_of(record: Record) -> float:
    """How many rows were trained on; one where the record does not say, so that all have the same."""
    rows = record.dataset.get("train_rows") or record.params.get("train_rows")
    return float(rows) if rows else 1.0


def curves(records: Iterable[Record], figure: Figure | Callable[[Record], Figure] = FIGURES["train_s"]) -> list[Curve]:
    """The curves in a set of records, in the order in which they first appear.

    `figure` is a time, or says for a record which one is meant, since the metric of a target goes with the workload.
    """
    counted = [record for record in newest(records) if record.workers]  # a document may not say how many there were
    kept = [record for record in counted if record.status not in ("unsupported", "interrupted")]
    found: dict[str, list[Record]] = {}
    for record, key in zip(kept, _keys(kept), strict=True):
        found.setdefault(key, []).append(record)
    families: dict[tuple[str, str], list[list[Record]]] = {}
    for members in found.values():
        families.setdefault((members[0].engine, members[0].workload), []).append(members)
    return [_curve(own, family, figure) for family in families.values() for own in family]


def _curve(own: list[Record], family: list[list[Record]], figure: Figure | Callable[[Record], Figure]) -> Curve:
    meant = figure if isinstance(figure, Figure) else figure(own[0])
    good = [record for record in own if _usable(meant.value(record))]
    bad = [record for record in own if not _usable(meant.value(record))]
    first = own[0]
    return Curve(first.engine, first.workload, _apart(own, family), tuple(good), tuple(bad), meant)


def _usable(value: float | None) -> bool:
    return value is not None and 0 < value < math.inf


def _keys(records: Sequence[Record]) -> list[str]:
    """What must be the same along a curve.

    A batch is either that of all workers together or grows with them. Which it is, a record does not say: it is what
    makes fewer curves of the records that are otherwise alike.
    """
    texts = [json.dumps(_base(record), sort_keys=True, default=str) for record in records]
    whole: dict[str, set[float]] = {}
    each: dict[str, set[float]] = {}
    for record, text in zip(records, texts, strict=True):
        whole.setdefault(text, set()).add(_batch_of(record))
        each.setdefault(text, set()).add(_batch_of(record) / record.workers)
    keys = []
    for record, text in zip(records, texts, strict=True):
        grows = len(each[text]) < len(whole[text])
        keys.append(f"{text} {_batch_of(record) / record.workers if grows else _batch_of(record)} {grows}")
    return keys


def _batch_of(record: Record) -> float:
    """The batch of all workers together; none where an engine knows no batches."""
    return float(record.params.get("batch_size") or 0.0)


def _base(record: Record) -> dict[str, Any]:
    """The setting less the sizes. Of listed nodes that are alike but for the first, only the first counts."""
    setting = setting_of(record)
    listed = setting.get("nodes")
    base = {key: value for key, value in setting.items() if key not in (*SIZES, "batch_size")}
    if isinstance(listed, list):
        base.pop("memory_gb", None)
        rest = [json.dumps(node, sort_keys=True) for node in listed[1:]]
        base["nodes"] = listed[:1] if len(set(rest)) <= 1 else listed
    return base


def _apart(own: list[Record], family: list[list[Record]]) -> dict[str, Any]:
    """In what a curve differs from the others of its engine and workload."""
    if len(family) == 1:
        return {}
    bases = [{**_base(members[0]), "batch_size": _batch(members)} for members in family]
    keys = without_implied_sizes(varying_keys(bases), bases)
    mine = {**_base(own[0]), "batch_size": _batch(own)}
    return {key: mine[key] for key in keys if key in mine}


def _batch(records: Sequence[Record]) -> int | str | None:
    """The batch of a curve, as one would ask for it: a number, or so many per node."""
    sizes = {record.params.get("batch_size") for record in records}
    if len(sizes) == 1:
        return sizes.pop()
    first = records[0]
    return f"{first.params['batch_size'] / first.workers:g} per node"
