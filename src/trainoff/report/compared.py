"""Comparisons as a person reads them: a table in 80 columns, a closing sentence, and what to keep in mind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainoff.analysis import Comparison, Figure, Group, arithmetic, disturbances, unnamed
from trainoff.analysis.compare import RANKING
from trainoff.analysis.format import count, times
from trainoff.records import PUBLISHED, Record
from trainoff.report.columns import ALWAYS, Column, table

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 16  # letters of a heading
LESS = {"faster": "less", "slower": "more"}  # of what is used up


@dataclass(frozen=True)
class Told:
    """What came out, ready to be shown."""

    compared: Sequence[Comparison]
    sides: tuple[str, str]  # headings over the medians of the first and the other of each
    sentence: str
    caveats: list[str]

    def show(self, console: Console) -> None:
        """Print table, sentence and caveats."""
        words = list(dict.fromkeys(one.figure.words for one in self.compared))
        console.print(f"{', '.join(words)}: {self.sides[0]} as a multiple of {self.sides[1]}", style="dim")
        console.print(table(_columns(self), console.width, [None] * len(self.compared), folds=True))
        console.print(f"\n{self.sentence}")
        for caveat in self.caveats:
            console.print(caveat)


def told(compared: Sequence[Comparison], first: str, other: str, alone: tuple[int, int] = (0, 0)) -> Told:
    """Put comparisons into words; `first` and `other` are what their two sides are called."""
    caveats = [*_indicative(compared), *_bands(compared), *_left_out(compared, (first, other), alone)]
    records = [record for _, record in _measured(compared)]
    caveats += [*_places(compared, (first, other)), *disturbances(records), *arithmetic(_groups(compared))]
    caveats += [usual] if (usual := unnamed(_groups(compared))) else []
    return Told(compared, (first, other), _sentence(compared, (first, other)), caveats)


def _columns(answer: Told) -> list[Column]:
    compared = answer.compared

    def medians(which: int) -> list[str]:
        return [one.figure.told((one.a, one.b)[which].median(one.figure.value)) for one in compared]

    several = len({one.figure.words for one in compared}) > 1
    return [
        Column("setting", _settings(answer), shrinks=True),
        *([Column("figure", [one.figure.words for one in compared], 50)] if several else []),
        Column(_heading(answer.sides[0]), medians(0), ALWAYS, right=True),
        Column(_heading(answer.sides[1]), medians(1), ALWAYS, right=True),
        Column("ratio", [_ratio(one) for one in compared], ALWAYS, right=True),
        Column("from to", [_interval(one) for one in compared], ALWAYS, right=True),
        Column("n", [str(one.n) for one in compared], 70, right=True),
        Column("verdict", [_verdict(one) for one in compared], ALWAYS),
    ]


def _settings(answer: Told) -> list[str]:
    """The settings that are compared, without the engine where the heading names it."""
    names = [one.a.name for one in answer.compared]
    engine = answer.sides[0]
    if len(names) == 1 or any(one.a.first.engine != engine for one in answer.compared):
        return names
    return [name.removeprefix(engine).strip() or name for name in names]


def _heading(side: str) -> str:
    """A side over its medians: of a setting the engine, of a long name its end."""
    return side.partition(" (")[0][-WIDEST:]


def _ratio(one: Comparison) -> str:
    """The ratio; there is none where one of the two never got there."""
    return times(one.ratio) if one.ratio and math.isfinite(one.ratio) else "-"


def _interval(one: Comparison) -> str:
    return "-" if one.low is None or one.n == 1 else f"{times(one.low)} to {times(one.high)}"


def _verdict(one: Comparison) -> str:
    if one.indicative:
        return "indicative"
    return LESS.get(one.verdict, one.verdict) if "used" in one.figure.neutral else one.verdict


def _sentence(compared: Sequence[Comparison], sides: tuple[str, str]) -> str:
    if len(compared) == 1:
        return compared[0].sentence
    verdicts = Counter(_verdict(one) for one in compared)
    counts = ", ".join(f"{number} {'tied' if word == 'tie' else word}" for word, number in verdicts.items())
    if len({id(one.b) for one in compared}) == 1:
        return f"{compared[0].names[1]} has the best {compared[0].figure.words}; of {len(compared)} others: {counts}."
    known = [one.ratio for one in compared if one.ratio and math.isfinite(one.ratio)]
    mean = math.exp(math.fsum(map(math.log, known)) / len(known)) if known else None
    over = f"; over all of them {times(mean)} times (geometric mean)" if len(known) == len(compared) else ""
    return f"{count(len(compared), 'setting')}, {sides[0]} beside {sides[1]}: {counts}{over}."


def _indicative(compared: Sequence[Comparison]) -> list[str]:
    few = sum(one.indicative for one in compared)
    if not few:
        return []
    if all(record.kind == PUBLISHED for _, record in _measured(compared)):
        return ["These figures were published, of one run each: indicative."]
    if len(compared) == 1:
        return [f"--repeat {RANKING} brings more pairs."]
    where = "" if few == len(compared) else f" in {few} of {len(compared)} settings"
    return [f"Fewer than {RANKING} pairs of repetitions{where}, so this is indicative: --repeat {RANKING} brings more."]


def _bands(compared: Sequence[Comparison]) -> list[str]:
    bands = dict.fromkeys(str(one.band) for one in compared if not one.indicative)
    return [f"Differences inside a band of {band}, are a tie." for band in bands]


def _left_out(compared: Sequence[Comparison], sides: tuple[str, str], alone: tuple[int, int]) -> list[str]:
    said = []
    for number, side in zip(alone, reversed(sides), strict=True):
        if number:
            said.append(f"{count(number, 'setting')} only in {side} {'is' if number == 1 else 'are'} left out.")
    without = sum(one.value(record) is None for one, record in _measured(compared))
    if without:
        trials = count(without, "trial")
        said.append(f"{trials} that did not come to this figure {'is' if without == 1 else 'are'} in no pair.")
    return said


def _measured(compared: Sequence[Comparison]) -> list[tuple[Figure, Record]]:
    """Every record once, with the figure it is compared by."""
    found = {id(record): (one.figure, record) for one in compared for record in (*one.a.records, *one.b.records)}
    return list(found.values())


def _places(compared: Sequence[Comparison], sides: tuple[str, str]) -> list[str]:
    """Other machines and other versions, where the two sides had them."""
    hosts = [sorted({str(record.environment.get("host")) for record in side}) for side in _records(compared)]
    said = []
    if hosts[0] != hosts[1]:
        said.append(f"They were not run on the same machines: {', '.join(hosts[0])} and {', '.join(hosts[1])}.")
    same = [one for one in compared if one.a.first.engine == one.b.first.engine]
    for engine in dict.fromkeys(one.a.first.engine for one in same):
        new, old = (_versions(side, engine) for side in _records(same))
        if new != old:
            said.append(f"{engine} was {new} in {sides[0]} and {old} in {sides[1]}.")
    return said


def _versions(records: Sequence[Record], engine: str) -> str:
    return ", ".join(sorted({record.engine_version for record in records if record.engine == engine}))


def _records(compared: Sequence[Comparison]) -> tuple[list[Record], list[Record]]:
    return (
        [record for one in compared for record in one.a.records],
        [record for one in compared for record in one.b.records],
    )


def _groups(compared: Sequence[Comparison]) -> list[Group]:
    return list({id(group): group for one in compared for group in (one.b, one.a)}.values())
