"""Find the candidates for advice: every setting that was run, and those that scaling models predict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.analysis.advice.posterior import DRAWS, SEED, Array, Posterior, RunEvidence, fit_posteriors, success_rates
from trainoff.analysis.faults import without_faults
from trainoff.analysis.figures import FIGURES, Figure, time_figure, time_to
from trainoff.analysis.format import count, node_size, target_text
from trainoff.analysis.groups import SettingGroup, groups
from trainoff.analysis.scaling.curves import SIZES, Curve, curves, rows_of
from trainoff.analysis.scaling.designer import grid
from trainoff.analysis.scaling.model import WIDEST, Estimate, Fit, fit
from trainoff.analysis.statistics import DEVIATIONS, LEVEL, WEIGHT, median_of
from trainoff.records import Record

BEYOND = 2  # times the largest node count that was run: the range of predictions without --nodes
Place = tuple[int, float]  # nodes and rows


@dataclass(frozen=True)
class AdviceFilter:
    """Which candidates to choose among; None: all of them."""

    engine: str | None = None
    nodes: int | None = None
    cores: float | None = None
    machine: str | None = None
    rows: float | None = None

    def holds(self, record: Record) -> bool:
        """Whether a run has the engine and kind of node."""
        return (
            self.engine in (None, record.engine)
            and self.cores in (None, record.cores)
            and self.machine in (None, record.params.get("machine"))
        )

    def at(self, place: Place) -> bool:
        """Whether the numbers of nodes and rows match."""
        return self.nodes in (None, place[0]) and self.rows in (None, place[1])


@dataclass(frozen=True)
class CandidateSet:
    """All candidates, and the settings that never reached the target."""

    candidates: Sequence[Candidate]
    never: Sequence[SettingGroup]
    filters: AdviceFilter
    engines: frozenset[str]  # that were run, whatever the filters


def find_candidates(records: Sequence[Record], target: float, filters: AdviceFilter, cold: bool) -> CandidateSet:
    """Find the candidates among the records of one workload."""
    alone = without_faults(groups(records))
    kept = [group for group in alone if filters.holds(group.first)]
    random = np.random.default_rng(SEED)
    evidence = [(group, evidence_of(group, target, cold)) for group in kept]
    reached = [(group, each) for group, each in evidence if each.seconds]
    missed = [(group, each) for group, each in evidence if each.failed and not each.seconds]
    others = [each for _, each in missed]
    posteriors = fit_posteriors([each for _, each in reached], random, others) if reached else []
    measured = [
        Candidate(group, each, posterior, group.median(lambda record: record.usd_per_hour), _overhead(group.records))
        for (group, each), posterior in zip(reached, posteriors, strict=True)
        if filters.at(place_of(group.first))
    ]
    never = [group for group, _ in missed if filters.at(place_of(group.first))]
    engines = frozenset(group.first.engine for group in alone)
    return CandidateSet([*measured, *_predicted(kept, target, filters, cold, random)], never, filters, engines)


def place_of(record: Record) -> Place:
    """Return the nodes and rows of a record."""
    return record.workers, rows_of(record)


def evidence_of(group: SettingGroup, target: float, cold: bool) -> RunEvidence:
    """Return the times of the runs of a setting to the target."""
    value = clock(target, group.first.metric, cold).value
    pairs = [(record, found) for record in group.records if (found := value(record)) is not None]
    good = [found for _, found in pairs if 0 < found < math.inf]
    bad = [record for record, found in pairs if math.isinf(found)]
    lost = median_of(_whole_time(record, cold) for record in bad or group.records)
    return RunEvidence(tuple(good), len(bad), max(good, default=0.0) if lost is None else lost)


def model_of(curve: Curve) -> Fit | None:
    """Fit the whole training time along a curve; None for a curve of one number of nodes and of rows."""
    ended = [record for record in (*curve.records, *curve.censored) if record.status == "ok" and record.train_s]
    places = [place_of(record) for record in ended]
    several = len({nodes for nodes, _ in places}) > 1 or len({rows for _, rows in places}) > 1
    return fit(replace(curve, records=tuple(ended), figure=FIGURES["train_s"]).measurements) if several else None


def _predicted(
    kept: Sequence[SettingGroup], target: float, filters: AdviceFilter, cold: bool, random: np.random.Generator
) -> list[Candidate]:
    """Predict candidates along every curve that has a model; those of one curve share their draws.

    The time to the target is the time of the whole training, by the model, times the share of it until the target.
    """
    records = [record for group in kept for record in group.records]
    every = curves(records, lambda record: time_to(target, record.metric))
    found = [curve for curve in every if curve.records and all(record.train_s for record in curve.records)]
    if not found:
        return []
    rates = success_rates([(len(curve.records), len(_missed(curve))) for curve in found], random)
    share = fit_shares(found, random)
    made = []
    for i, curve in enumerate(found):
        places = _places(curve, filters)
        if places and (model := model_of(curve)):
            picks, offsets = random.integers(model.draws.noise.size, size=DRAWS), random.standard_normal(DRAWS)
            lost = median_of(_whole_time(record, cold) for record in _missed(curve) or curve.records) or 0.0
            for place in places:
                typical, single = (part * share.sample(i, *place) for part in _draw_times(model, place, picks, offsets))
                single = single * np.exp(share.noise * random.standard_normal(DRAWS))
                overhead = (_overhead(_nearby(curve, place)) or 0.0) if cold else 0.0
                posterior = Posterior(typical + overhead, single + overhead, rates[i], lost)
                made.append(_candidate(curve, model, place, posterior, kept))
    return made


def _draw_times(model: Fit, place: Place, picks: NDArray[np.int64], offsets: Array) -> tuple[Array, Array]:
    """Draw the seconds of a whole training, typically and of a single run.

    `picks` are the model's fits that are drawn, and `offsets` how many standard deviations off they are beyond the
    measured; both are the same at all places.
    """
    middle = model.predict(*place).middle
    margin = np.exp(offsets * model.extrapolation_margin(place[0]) / DEVIATIONS)
    typical = np.clip(model.draws.seconds(*place)[picks], middle / WIDEST, middle * WIDEST) * margin
    return typical, typical * model.draws.noise[picks]


def _places(curve: Curve, filters: AdviceFilter) -> list[Place]:
    """Return the nodes and rows to predict for a curve: those of the filters, else around those that were run."""
    nodes, rows = curve.counts, {rows_of(record) for record in curve.records}
    if filters.nodes is not None:
        counts = [filters.nodes] if len(nodes) > 1 or filters.nodes in nodes else []
    elif len(nodes) > 1:
        counts = [count for count, _ in grid(nodes, [1.0], most_nodes(curve)) if count >= nodes[0]]
    else:
        counts = nodes
    wanted = [filters.rows] if filters.rows is not None else sorted(rows)
    wanted = [each for each in wanted if len(rows) > 1 or each in rows]
    run = {place_of(record) for record in (*curve.records, *curve.censored)}
    missed = [place_of(record) for record in _missed(curve)]
    too_many = min((count for count, _ in missed if count > nodes[-1]), default=math.inf)
    too_few = max((each for _, each in missed if each < min(rows)), default=0.0)  # rows that were not enough
    places = [(count, each) for count in counts if count < too_many for each in wanted if each > too_few]
    return [place for place in places if place not in run]


def _missed(curve: Curve) -> list[Record]:
    """Return the runs that did not reach the target, without those that were not timed to it."""
    return [record for record in curve.censored if curve.figure.value(record) is not None]


def most_nodes(curve: Curve) -> int:
    """Return the largest node count to predict: twice the largest run, on one machine no more than its CPUs."""
    largest = curve.counts[-1]
    record = curve.records[0]
    if record.cluster != "processes":
        return BEYOND * largest
    return max(largest, min(BEYOND * largest, int((record.environment.get("cpus") or 0) / record.cores)))


def _candidate(curve: Curve, model: Fit, place: Place, posterior: Posterior, kept: Sequence[SettingGroup]) -> Candidate:
    nearest = min(curve.records, key=lambda record: _distance(place_of(record), place))
    group = next(group for group in kept if nearest in group.records)
    runs = RunEvidence(tuple(curve.seconds(record) for record in curve.records), len(_missed(curve)))
    rows = [rows_of(record) for record in curve.records]
    inside = curve.counts[0] <= place[0] <= curve.counts[-1] and min(rows) <= place[1] <= max(rows)
    estimate = replace(model.predict(*place), extrapolated=not inside, error=model.grade.at(not inside))
    price, overhead = _usd_per_hour(curve, place[0]), _overhead(_nearby(curve, place))
    return Candidate(_moved(group, nearest, place), runs, posterior, price, overhead, estimate)


def _nearby(curve: Curve, place: Place) -> list[Record]:
    """Return the runs of a curve with the nearest number of nodes."""
    nearest = min(curve.counts, key=lambda nodes: _distance((nodes, 1.0), (place[0], 1.0)))
    return [record for record in curve.records if record.workers == nearest]


def _distance(a: Place, b: Place) -> float:
    return sum(abs(math.log(x / y)) for x, y in zip(a, b, strict=True) if x and y)


def _moved(group: SettingGroup, record: Record, place: Place) -> SettingGroup:
    """Return the setting with other numbers of nodes and rows, for its name; it has no runs of its own."""
    nodes, rows = place
    moved = replace(record, workers=nodes, dataset={**record.dataset, "train_rows": int(rows)} if rows > 1 else {})
    label: dict[str, Any] = {key: value for key, value in group.label.items() if key not in (*SIZES, "batch_size")}
    if "train_rows" in group.label:
        label["train_rows"] = int(rows)
    return SettingGroup(label, [moved], group.usual)


def _usd_per_hour(curve: Curve, nodes: int) -> float | None:
    """Return the price of an hour of so many nodes, by the price of a node of this curve."""
    prices = [each.usd_per_hour / each.workers for each in curve.records if each.usd_per_hour is not None]
    return statistics.median(prices) * nodes if len(prices) == len(curve.records) else None


def _overhead(records: Iterable[Record]) -> float | None:
    return median_of(overhead_seconds(record) for record in records)


@dataclass(frozen=True)
class ExpectedRange:
    """A figure with the interval that holds it in 95 % of all cases."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to train: an engine in a setting, on so many nodes."""

    group: SettingGroup  # of a prediction: the nearest that was run, with its nodes and rows changed
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
        """The seconds of the next run that reaches the target."""
        low, high = np.quantile(self.posterior.single, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return ExpectedRange(float(low), float(np.median(self.posterior.typical)), float(high))

    @property
    def usd(self) -> ExpectedRange | None:
        if self.usd_per_hour is None:
            return None
        took, price = self.seconds, self.usd_per_hour / 3600
        return ExpectedRange(took.low * price, took.middle * price, took.high * price)

    @property
    def place(self) -> str:
        """The nodes it runs on: `2 nodes of 1 core and 2 GB`, `5 nodes m4.xlarge`."""
        record = self.record
        nodes = count(self.nodes, "node") if self.nodes else "an unknown number of nodes"
        machine, scale = record.params.get("machine"), record.params.get("scale")
        if machine:
            part = f" (at {scale:g} of its size)" if scale and scale != 1 else ""
            return f"{nodes} {machine}{part}"
        size = node_size(record.cores, record.memory_gb)
        return f"{nodes} of {size}" if size else nodes

    def to_json(self) -> dict[str, Any]:
        """Return the candidate for JSON; what is not known is null."""
        record = self.record
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
            "expected_error": self.estimate.error if self.estimate else None,
        }


def clock(target: float, metric: str, cold: bool) -> Figure:
    """Return the training time to a target; with `cold`, that of a trial that ends there, start and end included."""
    if not cold:
        return time_to(target, metric)
    trained = time_to(target, metric).value

    def value(record: Record) -> float | None:
        reached, overhead = trained(record), overhead_seconds(record)
        if reached is None or math.isinf(reached):
            return reached
        return None if overhead is None else overhead + reached

    to = f"from cold to {target_text(metric, target)}"
    return time_figure("cold_to_target", f"time {to}", to, value, target)


def overhead_seconds(record: Record) -> float | None:
    """Return the seconds of a trial besides its training and the pauses for snapshots; None if not known."""
    if record.cold_s is None or record.train_s is None:
        return None
    return max(record.cold_s - record.train_s - (record.pause_s or 0.0), 0.0)


def _whole_time(record: Record, cold: bool) -> float | None:
    """Return the time of a whole run, which is lost if it misses the target; None if it is not known or 0."""
    return (record.cold_s if cold else record.train_s) or None


RIDGE = 0.0625  # how strongly the exponent of the nodes is drawn towards 0
FIRST_GUESS = 0.02  # how far shares are assumed to lie from the model
BETWEEN, BEYOND_E = 0.03, 0.2  # doubt about a number of rows that was not run, and for each factor e beyond those run
ITERATIONS = 30  # of alternating means; they converge


@dataclass(frozen=True)
class TargetShares:
    """The share of the training until the target: its logarithm is a sum of parts of the curve, its nodes and rows."""

    curves: Array
    exponents: Array  # of the nodes, for each curve
    rows: Array  # logarithms, in order
    steps: Array  # what each number of rows adds
    noise: float
    common: Array  # a draw of the doubt about the rows, the same for all predictions
    per_curve: Array  # draws of how each curve differs

    def sample(self, curve: int, nodes: int, rows: float) -> Array:
        """Return the share at so many nodes and rows, in each draw; never more than the whole training."""
        at = math.log(rows)
        middle = self.curves[curve] + self.exponents[curve] * math.log(nodes) + _interpolate(at, self.rows, self.steps)
        known = bool(np.any(np.isclose(at, self.rows)))
        beyond = max(self.rows[0] - at, at - self.rows[-1], 0.0)
        doubt = 0.0 if known else BETWEEN + BEYOND_E * beyond
        return np.asarray(np.exp(np.minimum(middle + doubt * self.common + self.noise * self.per_curve[curve], 0.0)))


def fit_shares(curves: Sequence[Curve], random: np.random.Generator) -> TargetShares:
    """Fit how the share depends on rows and nodes, to the runs that reached the target."""
    points = [
        (i, math.log(record.workers or 1), math.log(rows_of(record)), min(math.log(reached / record.train_s), 0.0))
        for i, curve in enumerate(curves)
        for record in curve.records
        if (reached := curve.seconds(record)) and record.train_s
    ]
    which = np.array([point[0] for point in points])
    nodes, rows, logs = (np.array([point[column] for point in points]) for column in (1, 2, 3))
    exponents = np.array([_exponent(nodes, rows, logs, which == i) for i in range(len(curves))])
    rest = logs - exponents[which] * nodes
    known, row = np.unique(rows, return_inverse=True)
    means, steps = np.zeros(len(curves)), np.zeros(len(known))
    for _ in range(ITERATIONS):
        means = np.bincount(which, rest - steps[row], len(curves)) / np.bincount(which, minlength=len(curves))
        steps = np.bincount(row, rest - means[which]) / np.bincount(row)
    left = rest - means[which] - steps[row]
    freedom = max(len(logs) - len(curves) - len(known) + 1, 0)
    noise = math.sqrt((WEIGHT * FIRST_GUESS**2 + float(left @ left)) / (WEIGHT + freedom))
    common, per_curve = random.standard_normal(DRAWS), random.standard_normal((len(curves), DRAWS))
    return TargetShares(means, exponents, known, steps, noise, common, per_curve)


def _exponent(nodes: Array, rows: Array, logs: Array, chosen: NDArray[np.bool_]) -> float:
    """Fit how the share of one curve depends on its nodes, within each number of rows."""
    xx, xy = 0.0, 0.0
    for each in np.unique(rows[chosen]):
        here = chosen & (rows == each)
        x, y = nodes[here] - nodes[here].mean(), logs[here] - logs[here].mean()
        xx, xy = xx + float(x @ x), xy + float(x @ y)
    return xy / (xx + RIDGE)


def _interpolate(at: float, places: Array, values: Array) -> float:
    """Interpolate between points, and extrapolate beyond them by the line through the last two."""
    if len(places) == 1:
        return float(values[0])
    right = int(np.clip(np.searchsorted(places, at), 1, len(places) - 1))
    part = (at - places[right - 1]) / (places[right] - places[right - 1])
    return float(values[right - 1] + part * (values[right] - values[right - 1]))
