"""What is considered: every setting that was run, and what models say of those that nobody ran."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.analysis.advice.posterior import DRAWS, SEED, Array, Posterior, RunEvidence, fit_posteriors, success_rates
from trainoff.analysis.faults import without_faults
from trainoff.analysis.figures import FIGURES, Figure, time_to
from trainoff.analysis.format import count, node_size, seconds, target_text
from trainoff.analysis.groups import SettingGroup, groups
from trainoff.analysis.scaling import SIZES, Curve, Estimate, Fit, curves, fit, grid, rows_of
from trainoff.analysis.scaling.model import WIDEST
from trainoff.analysis.statistics import LEVEL
from trainoff.records import Record

BEYOND = 2  # times the most nodes that were run: so far predictions are considered by themselves
SURE = 1.96  # standard deviations in the half width of an interval
Place = tuple[int, float]  # nodes and rows


@dataclass(frozen=True)
class AdviceFilter:
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
class CandidateSet:
    """Everything that could be chosen, the settings that never got to the target, and what was asked for."""

    candidates: Sequence[Candidate]
    never: Sequence[SettingGroup]
    filters: AdviceFilter
    engines: frozenset[str]  # that were tried, whatever was asked for


def find_candidates(records: Sequence[Record], target: float, filters: AdviceFilter, cold: bool) -> CandidateSet:
    """What could be chosen, of the records of one workload."""
    alone = without_faults(groups(records))
    kept = [group for group in alone if filters.holds(group.first)]
    random = np.random.default_rng(SEED)
    evidence = [(group, evidence_of(group, target, cold)) for group in kept]
    there = [(group, one) for group, one in evidence if one.seconds]
    never = [group for group, one in evidence if one.failed and not one.seconds and filters.at(place_of(group.first))]
    others = [one for _, one in evidence if one.failed and not one.seconds]
    beliefs = fit_posteriors([one for _, one in there], random, others) if there else []
    measured = [
        Candidate(group, one, belief, group.median(lambda record: record.usd_per_hour), _besides(group.records))
        for (group, one), belief in zip(there, beliefs, strict=True)
        if filters.at(place_of(group.first))
    ]
    tried = frozenset(group.first.engine for group in alone)
    return CandidateSet([*measured, *_predicted(kept, target, filters, cold, random)], never, filters, tried)


def place_of(record: Record) -> Place:
    """The nodes and rows of a record."""
    return record.workers, rows_of(record)


def evidence_of(group: SettingGroup, target: float, cold: bool) -> RunEvidence:
    """What the runs of a setting say of its time to the target."""
    value = clock(target, group.first.metric, cold).value
    pairs = [(record, found) for record in group.records if (found := value(record)) is not None]
    good = [found for _, found in pairs if 0 < found < math.inf]
    bad = [record for record, found in pairs if math.isinf(found)]
    spent = [took for record in bad or group.records if (took := lost(record, cold))]
    return RunEvidence(tuple(good), len(bad), statistics.median(spent) if spent else max(good, default=0.0))


def model_of(curve: Curve) -> Fit | None:
    """The model of the whole training time along a curve; None where it has one number of nodes and of rows."""
    ended = [record for record in (*curve.records, *curve.censored) if record.status == "ok" and record.train_s]
    places = [place_of(record) for record in ended]
    several = len({nodes for nodes, _ in places}) > 1 or len({rows for _, rows in places}) > 1
    return fit(replace(curve, records=tuple(ended), figure=FIGURES["train_s"]).measurements) if several else None


def _predicted(
    kept: Sequence[SettingGroup], target: float, filters: AdviceFilter, cold: bool, random: np.random.Generator
) -> list[Candidate]:
    """Candidates that nobody ran, of every curve that has a model; those of one curve are right or wrong together.

    The time to the target is the time of the whole training, by the model, and the share of it that gets there.
    """
    records = [record for group in kept for record in group.records]
    every = curves(records, lambda one: time_to(target, one.metric))
    found = [curve for curve in every if curve.records and all(record.train_s for record in curve.records)]
    if not found:
        return []
    reach = success_rates([(len(one.records), len(_missed(one))) for one in found], random)
    share = shares(found, random)
    made = []
    for number, curve in enumerate(found):
        places = _places(curve, filters)
        if places and (model := model_of(curve)):
            draws = _Draws(model, random.integers(model.draws.noise.size, size=DRAWS), random.standard_normal(DRAWS))
            for place in places:
                typical, single = (part * share.drawn(number, *place) for part in draws.times(place))
                single = single * np.exp(share.noise * random.standard_normal(DRAWS))
                besides = (_besides(_nearby(curve, place)) or 0.0) if cold else 0.0
                belief = Posterior(typical + besides, single + besides, reach[number], _lost(curve, cold))
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
        wide = np.exp(self.push * self.model.extrapolation_margin(place[0]) / SURE)
        near = np.clip(self.model.draws.seconds(*place)[self.picks], middle / WIDEST, middle * WIDEST) * wide
        return near, near * self.model.draws.noise[self.picks]


def _places(curve: Curve, filters: AdviceFilter) -> list[Place]:
    """The numbers of nodes and rows to predict for a curve: those asked for, else around what was run."""
    nodes, rows = curve.counts, {rows_of(record) for record in curve.records}
    if filters.nodes is not None:
        counts = [filters.nodes] if len(nodes) > 1 or filters.nodes in nodes else []
    elif len(nodes) > 1:
        counts = [n for n, _ in grid(nodes, [1.0], most_nodes(curve)) if n >= nodes[0]]
    else:
        counts = nodes
    wanted = [filters.rows] if filters.rows is not None else sorted(rows)
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


def _candidate(curve: Curve, model: Fit, place: Place, belief: Posterior, kept: Sequence[SettingGroup]) -> Candidate:
    nearest = min(curve.records, key=lambda record: _far(place_of(record), place))
    group = next(group for group in kept if nearest in group.records)
    runs = RunEvidence(tuple(curve.seconds(record) for record in curve.records), len(_missed(curve)))
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


def _moved(group: SettingGroup, record: Record, place: Place) -> SettingGroup:
    """A setting with other numbers of nodes and rows, for its name; it has no runs of its own."""
    nodes, rows = place
    moved = replace(record, workers=nodes, dataset={**record.dataset, "train_rows": int(rows)} if rows > 1 else {})
    label: dict[str, Any] = {key: value for key, value in group.label.items() if key not in (*SIZES, "batch_size")}
    if "train_rows" in group.label:
        label["train_rows"] = int(rows)
    return SettingGroup(label, [moved], group.usual)


def _rate(curve: Curve, nodes: int) -> float | None:
    """What an hour of so many nodes costs, as a node of this curve does."""
    each = [one.usd_per_hour / one.workers for one in curve.records if one.usd_per_hour is not None and one.workers]
    return statistics.median(each) * nodes if len(each) == len(curve.records) else None


def _besides(records: Sequence[Record]) -> float | None:
    known = [besides for record in records if (besides := overhead_seconds(record)) is not None]
    return statistics.median(known) if known else None


@dataclass(frozen=True)
class ExpectedRange:
    """A figure with what encloses it in 95 % of all cases."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to train: an engine in a setting, on so many nodes."""

    group: (
        SettingGroup  # of what was measured; of what is predicted the nearest that was, with its nodes and rows changed
    )
    evidence: RunEvidence
    posterior: Posterior
    usd_per_hour: float | None  # of all nodes together; None: no price is known
    overhead_s: float | None  # what a trial takes besides its training
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
    def seconds(self) -> ExpectedRange:
        """Of the next run that gets there."""
        low, high = np.quantile(self.posterior.single, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return ExpectedRange(float(low), float(np.median(self.posterior.typical)), float(high))

    @property
    def usd(self) -> ExpectedRange | None:
        """What that costs."""
        if self.usd_per_hour is None:
            return None
        took, rate = self.seconds, self.usd_per_hour / 3600
        return ExpectedRange(took.low * rate, took.middle * rate, took.high * rate)

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
            "besides_training_s": self.overhead_s,
            "runs": self.evidence.runs if self.measured else 0,
            "reached": len(self.evidence.seconds) if self.measured else 0,
            "reach": float(np.mean(self.posterior.success_rate)),
            "predicted": not self.measured,
            "extrapolated": self.extrapolated,
            "expected_error": one.error if one else None,
        }


COLD = "cold_to_target"


def clock(target: float, metric: str, cold: bool) -> Figure:
    """The seconds until a target is reached: of training, or from cold."""
    return cold_time_to(target, metric) if cold else time_to(target, metric)


def cold_time_to(target: float, metric: str) -> Figure:
    """What a trial takes that ends at the target: start, rows, training until then, test and end."""
    trained = time_to(target, metric).value

    def value(record: Record) -> float | None:
        reached, besides = trained(record), overhead_seconds(record)
        if reached is None or math.isinf(reached):
            return reached
        return None if besides is None else besides + reached

    goal = target_text(metric, target)
    words = f"time from cold to {goal}"
    neutral, better = f"took {{ratio}} times as long as {{other}} from cold to {goal}", "{ratio} times faster"
    return Figure(
        COLD, words, value, seconds, neutral, f"was {better} than {{other}} from cold to {goal}", target=target
    )


def overhead_seconds(record: Record) -> float | None:
    """The seconds of a trial in which it did not train and nobody looked at its weights; None where not known."""
    if record.cold_s is None or record.train_s is None:
        return None
    return max(record.cold_s - record.train_s - (record.pause_s or 0.0), 0.0)


def lost(record: Record, cold: bool) -> float | None:
    """What a run took that did not get there."""
    return record.cold_s if cold else record.train_s


STEADY = 0.0625  # how little the share is thought to go with the nodes: as a regression's weight on none
FIRST_GUESS, WEIGHT = 0.02, 2  # how far shares lie from the model, and how many runs that is worth
BETWEEN, PER_FACTOR_E = (
    0.03,
    0.2,
)  # doubt of a number of rows that was not run, and for each factor e beyond those that were
ROUNDS = 30  # of taking means by turns, until they agree


@dataclass(frozen=True)
class Shares:
    """Logarithms of shares as a sum: of the curve, of its nodes, and of the rows, the same for all curves."""

    curves: Array
    slopes: Array  # with the logarithm of the nodes
    rows: Array  # logarithms, in order
    steps: Array  # what each number of rows adds
    noise: float
    common: Array  # a draw of the doubt about the rows, the same for all that is predicted
    own: Array  # draws of what sets each curve apart

    def drawn(self, curve: int, nodes: int, rows: float) -> Array:
        """The share at so many nodes and rows, in each draw; never more than all of the training."""
        at = math.log(rows)
        middle = self.curves[curve] + self.slopes[curve] * math.log(nodes) + _along(at, self.rows, self.steps)
        known = bool(np.any(np.isclose(at, self.rows)))
        far = max(self.rows[0] - at, at - self.rows[-1], 0.0)
        doubt = 0.0 if known else BETWEEN + PER_FACTOR_E * far
        return np.asarray(np.exp(np.minimum(middle + doubt * self.common + self.noise * self.own[curve], 0.0)))


def shares(curves: Sequence[Curve], random: np.random.Generator) -> Shares:
    """How the share goes with rows and nodes, by the runs that got there."""
    points = [
        (place, math.log(record.workers or 1), math.log(rows_of(record)), _log_share(curve, record))
        for place, curve in enumerate(curves)
        for record in curve.records
    ]
    which = np.array([point[0] for point in points])
    nodes, rows, logs = (np.array([point[column] for point in points]) for column in (1, 2, 3))
    slopes = np.array([_slope(nodes, rows, logs, which == place) for place in range(len(curves))])
    rest = logs - slopes[which] * nodes
    known, row = np.unique(rows, return_inverse=True)
    own, steps = np.zeros(len(curves)), np.zeros(len(known))
    for _ in range(ROUNDS):
        own = np.bincount(which, rest - steps[row], len(curves)) / np.bincount(which, minlength=len(curves))
        steps = np.bincount(row, rest - own[which]) / np.bincount(row)
    left = rest - own[which] - steps[row]
    freedom = max(len(logs) - len(curves) - len(known) + 1, 0)
    noise = math.sqrt((WEIGHT * FIRST_GUESS**2 + float(left @ left)) / (WEIGHT + freedom))
    return Shares(
        own, slopes, known, steps, noise, random.standard_normal(DRAWS), random.standard_normal((len(curves), DRAWS))
    )


def _log_share(curve: Curve, record: Record) -> float:
    reached = curve.seconds(record)
    return min(math.log(reached / max(record.train_s or 0.0, reached)), 0.0)


def _slope(nodes: Array, rows: Array, logs: Array, own: NDArray[np.bool_]) -> float:
    """How the share of one curve goes with its nodes, as far as its runs say so, rows by rows."""
    across, up = 0.0, 0.0
    for one in np.unique(rows[own]):
        here = own & (rows == one)
        n, y = nodes[here] - nodes[here].mean(), logs[here] - logs[here].mean()
        across, up = across + float(n @ n), up + float(n @ y)
    return up / (across + STEADY)


def _along(at: float, places: Array, values: Array) -> float:
    """A line through the points, on beyond the last ones as between the two there."""
    if len(places) == 1:
        return float(values[0])
    right = int(np.clip(np.searchsorted(places, at), 1, len(places) - 1))
    part = (at - places[right - 1]) / (places[right] - places[right - 1])
    return float(values[right - 1] + part * (values[right] - values[right - 1]))
