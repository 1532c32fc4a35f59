"""What is considered: every setting that was run, and what models say of those that nobody ran."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.analyse.advice.candidate import Candidate
from trainoff.analyse.advice.clock import besides_training, clock, lost
from trainoff.analyse.advice.shares import shares
from trainoff.analysis.advice.belief import DRAWS, SEED, Array, Belief, Evidence, believe, reaching
from trainoff.analysis.faults import left_alone
from trainoff.analysis.figures import FIGURES, time_to
from trainoff.analysis.groups import Group, groups
from trainoff.analysis.scaling import SIZES, Curve, Estimate, Fit, curves, fit, grid, rows_of
from trainoff.analysis.scaling.model import FURTHEST
from trainoff.records import Record

BEYOND = 2  # times the most nodes that were run: so far predictions are considered by themselves
SURE = 1.96  # standard deviations in the half width of an interval
Place = tuple[int, float]  # nodes and rows


@dataclass(frozen=True)
class Wish:
    """What the choice is among; None: everything."""

    engine: str | None = None
    nodes: int | None = None
    cores: float | None = None
    machine: str | None = None
    rows: float | None = None

    def holds(self, record: Record) -> bool:
        """Whether a run is of the wished engine and kind of node."""
        return (
            self.engine in (None, record.engine)
            and self.cores in (None, record.cores)
            and self.machine in (None, record.params.get("machine"))
        )

    def at(self, place: Place) -> bool:
        """Whether so many nodes and rows are wished."""
        return self.nodes in (None, place[0]) and self.rows in (None, place[1])


@dataclass(frozen=True)
class Field:
    """Everything that could be chosen, the settings that never got to the target, and what was asked for."""

    candidates: Sequence[Candidate]
    never: Sequence[Group]
    wish: Wish
    engines: frozenset[str]  # that were tried, whatever was asked for


def considered(records: Sequence[Record], target: float, wish: Wish, cold: bool) -> Field:
    """What could be chosen, of the records of one workload."""
    alone = left_alone(groups(records))
    kept = [group for group in alone if wish.holds(group.first)]
    random = np.random.default_rng(SEED)
    evidence = [(group, evidence_of(group, target, cold)) for group in kept]
    there = [(group, one) for group, one in evidence if one.seconds]
    never = [group for group, one in evidence if one.failed and not one.seconds and wish.at(place_of(group.first))]
    others = [one for _, one in evidence if one.failed and not one.seconds]
    beliefs = believe([one for _, one in there], random, others) if there else []
    measured = [
        Candidate(group, one, belief, group.median(lambda record: record.usd_per_hour), _besides(group.records))
        for (group, one), belief in zip(there, beliefs, strict=True)
        if wish.at(place_of(group.first))
    ]
    tried = frozenset(group.first.engine for group in alone)
    return Field([*measured, *_predicted(kept, target, wish, cold, random)], never, wish, tried)


def place_of(record: Record) -> Place:
    """The nodes and rows of a record."""
    return record.workers, rows_of(record)


def evidence_of(group: Group, target: float, cold: bool) -> Evidence:
    """What the runs of a setting say of its time to the target."""
    value = clock(target, group.first.metric, cold).value
    pairs = [(record, found) for record in group.records if (found := value(record)) is not None]
    good = [found for _, found in pairs if 0 < found < math.inf]
    bad = [record for record, found in pairs if math.isinf(found)]
    spent = [took for record in bad or group.records if (took := lost(record, cold))]
    return Evidence(tuple(good), len(bad), statistics.median(spent) if spent else max(good, default=0.0))


def model_of(curve: Curve) -> Fit | None:
    """The model of the whole training time along a curve; None where it has one number of nodes and of rows."""
    ended = [record for record in (*curve.records, *curve.censored) if record.status == "ok" and record.train_s]
    places = [place_of(record) for record in ended]
    several = len({nodes for nodes, _ in places}) > 1 or len({rows for _, rows in places}) > 1
    return fit(replace(curve, records=tuple(ended), figure=FIGURES["train_s"]).configs) if several else None


def _predicted(
    kept: Sequence[Group], target: float, wish: Wish, cold: bool, random: np.random.Generator
) -> list[Candidate]:
    """Candidates that nobody ran, of every curve that has a model; those of one curve are right or wrong together.

    The time to the target is the time of the whole training, by the model, and the share of it that gets there.
    """
    records = [record for group in kept for record in group.records]
    every = curves(records, lambda one: time_to(target, one.metric))
    found = [curve for curve in every if curve.records and all(record.train_s for record in curve.records)]
    if not found:
        return []
    reach = reaching([(len(one.records), len(_missed(one))) for one in found], random)
    share = shares(found, random)
    made = []
    for number, curve in enumerate(found):
        places = _places(curve, wish)
        if places and (model := model_of(curve)):
            draws = _Draws(model, random.integers(model.spread.noise.size, size=DRAWS), random.standard_normal(DRAWS))
            for place in places:
                typical, single = (part * share.drawn(number, *place) for part in draws.times(place))
                single = single * np.exp(share.noise * random.standard_normal(DRAWS))
                besides = (_besides(_nearby(curve, place)) or 0.0) if cold else 0.0
                belief = Belief(typical + besides, single + besides, reach[number], _lost(curve, cold))
                made.append(_candidate(curve, model, place, belief, kept))
    return made


@dataclass(frozen=True)
class _Draws:
    """Which of a model's fits is drawn, and how far off it is beyond the measured; the same at all places."""

    model: Fit
    picks: NDArray[np.int64]
    push: Array

    def times(self, place: Place) -> tuple[Array, Array]:
        """The seconds of a whole training, typically and of a single run."""
        middle = self.model.predict(*place).middle
        wide = np.exp(self.push * self.model.doubt(place[0]) / SURE)
        near = np.clip(self.model.spread.drawn(*place)[self.picks], middle / FURTHEST, middle * FURTHEST) * wide
        return near, near * self.model.spread.noise[self.picks]


def _places(curve: Curve, wish: Wish) -> list[Place]:
    """The numbers of nodes and rows to predict for a curve: those asked for, else around what was run."""
    nodes, rows = curve.counts, {rows_of(record) for record in curve.records}
    if wish.nodes is not None:
        counts = [wish.nodes] if len(nodes) > 1 or wish.nodes in nodes else []
    elif len(nodes) > 1:
        counts = [n for n, _ in grid(nodes, [1.0], most_nodes(curve)) if n >= nodes[0]]
    else:
        counts = nodes
    wanted = [wish.rows] if wish.rows is not None else sorted(rows)
    wanted = [one for one in wanted if len(rows) > 1 or one in rows]
    run = {place_of(record) for record in (*curve.records, *curve.censored)}
    missed = [place_of(one) for one in _missed(curve)]
    stops = min((n for n, _ in missed if n > nodes[-1]), default=math.inf)
    fewest = max((one for _, one in missed if one < min(rows)), default=0.0)  # with so few rows it never got there
    return [(n, one) for n in counts for one in wanted if (n, one) not in run and n < stops and one > fewest]


def _missed(curve: Curve) -> list[Record]:
    """The runs that did not get to the target; not those that never were on the way to it."""
    return [record for record in curve.censored if curve.figure.value(record) is not None]


def most_nodes(curve: Curve) -> int:
    """How far predictions go by themselves: twice the most that were run, but no further than this machine's CPUs."""
    largest = curve.counts[-1]
    record = curve.records[0]
    if record.cluster != "processes":
        return BEYOND * largest
    return max(largest, min(BEYOND * largest, int((record.environment.get("cpus") or 0) / record.cores)))


def _lost(curve: Curve, cold: bool) -> float:
    spent = [took for record in _missed(curve) or curve.records if (took := lost(record, cold))]
    return statistics.median(spent) if spent else 0.0


def _candidate(curve: Curve, model: Fit, place: Place, belief: Belief, kept: Sequence[Group]) -> Candidate:
    nearest = min(curve.records, key=lambda record: _far(place_of(record), place))
    group = next(group for group in kept if nearest in group.records)
    runs = Evidence(tuple(curve.seconds(record) for record in curve.records), len(_missed(curve)))
    rate, besides = _rate(curve, place[0]), _besides(_nearby(curve, place))
    return Candidate(_moved(group, nearest, place), runs, belief, rate, besides, _estimate(curve, model, place))


def _estimate(curve: Curve, model: Fit, place: Place) -> Estimate:
    """What the model says, extrapolated if it lies beyond the runs that got there."""
    found, rows = model.predict(*place), [rows_of(record) for record in curve.records]
    inside = curve.counts[0] <= place[0] <= curve.counts[-1] and min(rows) <= place[1] <= max(rows)
    return replace(found, extrapolated=not inside, error=model.grade.at(not inside))


def _nearby(curve: Curve, place: Place) -> list[Record]:
    """The runs of a curve with the nearest number of nodes."""
    nearest = min(curve.counts, key=lambda nodes: _far((nodes, 1.0), (place[0], 1.0)))
    return [record for record in curve.records if record.workers == nearest]


def _far(one: Place, other: Place) -> float:
    return sum(abs(math.log(a / b)) for a, b in zip(one, other, strict=True) if a and b)


def _moved(group: Group, record: Record, place: Place) -> Group:
    """A setting with other numbers of nodes and rows, for its name; it has no runs of its own."""
    nodes, rows = place
    moved = replace(record, workers=nodes, dataset={**record.dataset, "train_rows": int(rows)} if rows > 1 else {})
    label: dict[str, Any] = {key: value for key, value in group.label.items() if key not in (*SIZES, "batch_size")}
    if "train_rows" in group.label:
        label["train_rows"] = int(rows)
    return Group(label, [moved], group.usual)


def _rate(curve: Curve, nodes: int) -> float | None:
    """What an hour of so many nodes costs, as a node of this curve does."""
    each = [one.usd_per_hour / one.workers for one in curve.records if one.usd_per_hour is not None and one.workers]
    return statistics.median(each) * nodes if len(each) == len(curve.records) else None


def _besides(records: Sequence[Record]) -> float | None:
    known = [besides for record in records if (besides := besides_training(record)) is not None]
    return statistics.median(known) if known else None
