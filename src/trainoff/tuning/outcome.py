"""What came out of tuning, engine by engine, and which of recipe and challenger a study should use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainoff.analysis import Band, Comparison, Group, Match, compare_all, time_to
from trainoff.analysis.format import mark, seconds, times
from trainoff.records import Record
from trainoff.tuning.score import badness, time_of
from trainoff.tuning.search import Candidate

WITHIN = Band(0.05)  # a recipe that is as close as this to the best that was found is good enough
NAMES = ("the challenger", "the recipe")


@dataclass(frozen=True)
class Tuned:
    """One engine after its search: every candidate, the race of the best one with the recipe, and the verdict."""

    engine: str
    target: float | None = None
    tried: Sequence[tuple[Candidate, Record]] = ()  # the recipe first
    challenger: Candidate | None = None  # the best of all that are not the recipe
    race: Sequence[tuple[Record, Record]] = ()  # challenger and recipe with the same seed
    why_not: str | None = None  # why there was no search
    race_lacks: str | None = None  # why the race is short, or missing
    comparison: Comparison | None = None  # of the race

    @property
    def reached(self) -> bool:
        """Whether anybody got to the target."""
        return self.target is not None and any(time_of(record, self.target) is not None for _, record in self.tried)

    @property
    def ahead(self) -> bool:
        """Whether the challenger was ahead of the recipe: in the race, or where there was none in the search."""
        if self.challenger is None or self.target is None:
            return False
        if self.comparison is None or not self.comparison.n:
            return self._badness(self.challenger) < self._badness({})
        target = self.target
        won = sum(badness(one, target) < badness(other, target) for one, other in self.race)
        ratio = self.comparison.ratio
        return ratio < 1 if ratio is not None else 2 * won > len(self.race)

    def _badness(self, candidate: Candidate) -> float:
        assert self.target is not None
        return next(badness(record, self.target) for each, record in self.tried if dict(each) == dict(candidate))

    @property
    def within(self) -> bool:
        """Whether the race proves that the recipe is at most 5 % behind the best that was found."""
        found = self.comparison
        if found is None or found.indicative:
            return False
        return found.verdict in ("tie", "slower") or (found.low is not None and found.low >= 1 / (1 + WITHIN.width))

    @property
    def verdict(self) -> str:
        """`faster`, `within 5%` (the recipe is good enough), `undecided`, or `not searched`."""
        if self.why_not or self.target is None:
            return "not searched"
        if self.within:
            return "within 5%"
        return "faster" if self.comparison and self.comparison.verdict == "faster" else "undecided"

    @property
    def winner(self) -> Candidate:
        """What belongs in [engine.NAME]: the challenger's values if it was ahead, else nothing, the recipe."""
        if self.verdict in ("not searched", "within 5%") or not self.reached or not self.ahead:
            return {}
        return self.challenger or {}

    @property
    def sentence(self) -> str:
        """What came out, in one sentence."""
        return _sentence(self)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "engine": self.engine,
            "target": self.target,
            "verdict": self.verdict,
            "winner": dict(self.winner),
            "challenger": None if self.challenger is None else dict(self.challenger),
            "candidates": len(self.tried),
            "race": self.comparison.to_json() if self.comparison else None,
            "sentence": self.sentence,
            "tried": [
                {
                    "values": dict(candidate),
                    "trial_id": record.trial_id,
                    "status": record.status,
                    "time_to_target": None if self.target is None else time_of(record, self.target),
                    "result": record.test_metrics.get(record.metric),
                }
                for candidate, record in self.tried
            ],
        }


def _sentence(one: Tuned) -> str:
    if one.why_not or one.target is None:
        return f"{one.engine}: not searched, {one.why_not or 'time was up'}."
    record = one.tried[0][1]
    goal, number = mark(record.metric, one.target), len(one.tried)
    if not one.reached:
        return f"{one.engine}: none of {number} candidates reached {goal}."
    if one.challenger is None:
        return f"{one.engine}: only the recipe was tried."
    found = one.comparison
    if found is None or not found.n:
        best = seconds(time_of(record, one.target))
        lead = f"a candidate was ahead of the recipe ({best}) to {goal}" if one.winner else "the recipe was ahead"
        return f"{one.engine}: of {number} candidates {lead} in the search; {one.race_lacks or 'they were not raced'}."
    if one.verdict == "within 5%":
        return f"{one.engine}: the recipe is within 5% of the best of {number} candidates to {goal} ({_spread(found)})."
    told = found.sentence.removesuffix(".")
    return f"{one.engine}: of {number} candidates the best was raced with the recipe: {told}."


def _spread(found: Comparison) -> str:
    if found.low is None or found.high is None:
        return f"reached {found.reached[0]} and {found.reached[1]} times of {found.n}"
    return f"it took {times(found.ratio)} times as long, {times(found.low)} to {times(found.high)}, n = {found.n}"


@dataclass(frozen=True)
class Tuning:
    """What came out for a study."""

    study: str
    engines: Sequence[Tuned] = ()
    interrupted: bool = False
    records: int = 0  # that were made this time

    @property
    def reached(self) -> bool:
        return any(one.reached for one in self.engines)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "study": self.study,
            "interrupted": self.interrupted,
            "engines": [one.to_json() for one in self.engines],
        }


def compared(found: Sequence[Tuned]) -> list[Tuned]:
    """The same with the races judged, together: several verdicts are likelier to hold one that is wrong."""
    raced = [one for one in found if one.race]
    judged = dict(zip((one.engine for one in raced), compare_all([_match(one) for one in raced]), strict=True))
    return [replace(one, comparison=judged.get(one.engine)) for one in found]


def _match(one: Tuned) -> Match:
    assert one.target is not None
    figure = time_to(one.target, one.race[0][0].metric)
    challenger, recipe = ([pair[place] for pair in one.race] for place in (0, 1))
    return Match(Group({}, challenger), Group({}, recipe), figure, WITHIN, NAMES)
