"""`trainoff compare`: two folders, or two engines of one, with verdicts."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.analysis import (
    FIGURES,
    Comparison,
    Figure,
    Match,
    SettingGroup,
    arithmetic,
    band_of,
    by_workload,
    compare_all,
    disturbances,
    groups,
    newest,
    usual_settings,
)
from trainoff.analysis.compare import RANKING, Pair, adjusted, against_best, engine_pairs, folder_pairs
from trainoff.analysis.figures import TIME_TO_TARGET, time_to
from trainoff.analysis.format import count, join_names, ratio_text
from trainoff.analysis.ranking import check_target, headline_target, not_timed, sort_by_figure
from trainoff.cli import common
from trainoff.cli.show import warn
from trainoff.errors import TrainoffError
from trainoff.records import PUBLISHED, DamagedRecord, Record
from trainoff.report.tables import ALWAYS, Column, table
from trainoff.reproductions.published import require_records
from trainoff.study.suggestions import quote, suggest

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class CompareOptions:
    """What to compare, as it was asked."""

    folders: Sequence[Path]
    engines: Sequence[str] = ()
    figure: str = TIME_TO_TARGET
    target: float | None = None


def compare_folders(question: CompareOptions, as_json: bool, console: Console) -> int:
    """Answer the question as a table with a closing sentence, or as JSON; 1 if a record is damaged."""
    _check(question)
    read = [_records(folder) for folder in question.folders]
    for (records, _), folder in zip(read, question.folders, strict=True):
        _check_engines(question.engines, records, folder)
    answer = _answer(question, [records for records, _ in read])
    if as_json:
        print(json.dumps(_for_programs(question, answer), indent=1, allow_nan=False))
    else:
        answer.show(console)
    return warn([one for _, damaged in read for one in damaged])


def _check(question: CompareOptions) -> None:
    if len(question.folders) > 2:
        raise TrainoffError(f"compare takes one folder or two, and here are {len(question.folders)}")
    names = [TIME_TO_TARGET, *FIGURES]
    if question.figure not in names:
        hint = suggest(question.figure, names, "the figures are")
        raise TrainoffError(f"--figure {quote(question.figure)} is not a figure to compare; {hint}")
    if question.target is not None and question.figure != TIME_TO_TARGET:
        raise TrainoffError(f"--target belongs to --figure {TIME_TO_TARGET}, not to {question.figure}")
    check_target(question.target)
    if len(question.folders) == 1 and len(set(question.engines)) == 1:
        raise TrainoffError(f"--engines {' '.join(question.engines)}: an engine is not compared with itself; name two")


def _records(folder: Path) -> tuple[list[Record], list[DamagedRecord]]:
    records, damaged = require_records(folder)
    return newest(records), damaged


def _check_engines(engines: Sequence[str], records: Sequence[Record], folder: Path) -> None:
    here = sorted({record.engine for record in records})
    for name in engines:
        if name not in here:
            raise TrainoffError(f"--engines: {folder} has no record of {quote(name)}; {suggest(name, here, 'it has')}")


def _answer(question: CompareOptions, records: Sequence[Sequence[Record]]) -> ComparisonTable:
    """The comparisons that were asked for, workload by workload, and how they are called."""
    found = [groups(each) for each in records]
    everybody = [group for each in found for group in each]
    figures = _figures(question, everybody)
    pairs = [pair for pair in _pairs(question, found, figures) if pair[0].first.workload in figures]
    two = len(question.folders) == 2
    matches = []
    for a, b in pairs:
        figure = figures[a.first.workload]
        matches.append(Match(a, b, figure, band_of(everybody, figure), _names(question, a, b), across=two))
    adjust = adjusted if two or question.engines else against_best
    workloads = dict.fromkeys(match.a.first.workload for match in matches)  # each is read by itself
    alike = [[match for match in matches if match.a.first.workload == workload] for workload in workloads]
    compared = [one for own in alike for one in compare_all(own, adjust)]
    _check_pairs(compared)
    answer = told(compared, *_sides(question, compared), alone=_alone(question, found) if two else (0, 0))
    return replace(answer, caveats=[*_out_of_reach(question, everybody, figures), *answer.caveats])


def _pairs(
    question: CompareOptions, found: Sequence[Sequence[SettingGroup]], figures: Mapping[str, Figure]
) -> list[Pair]:
    """What is to be compared with what; a sentence if there is nothing."""
    where = " and ".join(map(str, question.folders))
    if len(found) == 2:
        pairs = folder_pairs(*found)
        if question.engines:
            pairs = [pair for pair in pairs if pair[0].first.engine in question.engines]
        lack = "have no setting in common: engine, workload, cluster and parameters must be alike"
    elif question.engines:
        pairs = engine_pairs(found[0], *question.engines)
        lack = f"has no workload and parameters that {' and '.join(question.engines)} have in common"
    else:
        pairs = [pair for own in by_workload(found[0]) for pair in _against_best(own, figures)]
        lack = "has only one setting, and nothing to compare it with"
    if not pairs:
        raise TrainoffError(f"{where} {lack}")
    return pairs


def _against_best(own: Sequence[SettingGroup], figures: Mapping[str, Figure]) -> list[Pair]:
    """All settings of one workload, each with the best of them by its figure; those that were not run left out."""
    figure = figures.get(own[0].first.workload)
    ranked = sort_by_figure(own, figure) if figure else []
    return [(group, ranked[0]) for group in ranked[1:]]


def _figures(question: CompareOptions, found: Sequence[SettingGroup]) -> dict[str, Figure]:
    """The figure to compare by, for each workload; none for one of which nobody reached a target."""
    if question.figure != TIME_TO_TARGET:
        figure = FIGURES[question.figure]
        if all(figure.value(record) is None for group in found for record in group.records):
            raise TrainoffError(f"no trial here has its {figure.label} on record; {_instead(question)}")
        return {group.first.workload: figure for group in found}
    figures = {}
    for own in by_workload(found):
        target = headline_target(own) if question.target is None else question.target
        if target is not None and any(str(target) in group.first.time_to_target for group in own):
            figures[own[0].first.workload] = time_to(target, own[0].first.metric)
    if figures:
        return figures
    if question.target is None:
        raise TrainoffError("nobody reached a target, so there is no time to compare; try --figure train_s")
    raise not_timed([record for group in found for record in group.records], question.target)


def _instead(question: CompareOptions) -> str:
    """What to do where no trial has the figure that is asked for."""
    if question.figure == "cost_usd":
        return f"`trainoff show {question.folders[0]} --prices FILE` tells it by a price book"
    return "choose another --figure"


def _out_of_reach(question: CompareOptions, found: Sequence[SettingGroup], figures: Mapping[str, Figure]) -> list[str]:
    """The workloads without a figure to compare them by, and what would compare them."""
    names = [name for name in dict.fromkeys(group.first.workload for group in found) if name not in figures]
    if not names:
        return []
    why = "nobody reached a target" if question.target is None else f"{question.target:g} was not timed"
    return [f"{join_names(names)} {'is' if len(names) == 1 else 'are'} left out, for {why}; try --figure train_s."]


def _check_pairs(compared: Sequence[Comparison]) -> None:
    """At least one comparison must have something to say."""
    if not any(one.n for one in compared):
        raise TrainoffError("no repetition was done by both within one study, so there are no pairs to compare")


def _names(question: CompareOptions, a: SettingGroup, b: SettingGroup) -> tuple[str, str]:
    if len(question.folders) == 1:
        return a.name, b.name
    first, second = question.folders
    return f"{a.name} in {second}", f"{b.name} in {first}"


def _sides(question: CompareOptions, compared: Sequence[Comparison]) -> tuple[str, str]:
    """The headings over the medians of the first and the other of every comparison."""
    if len(question.folders) == 2:
        first, second = question.folders
        return (second.name, first.name) if first.name != second.name else ("second", "first")
    if question.engines:
        return question.engines[0], question.engines[1]
    best = {id(one.b): one.b.name for one in compared}
    return "each", next(iter(best.values())) if len(best) == 1 else "the best"


def _alone(question: CompareOptions, found: Sequence[Sequence[SettingGroup]]) -> tuple[int, int]:
    """How many settings, of the engines asked for, are only in the first folder, and only in the second."""
    first, second = (
        [group for group in side if not question.engines or group.first.engine in question.engines] for side in found
    )
    pairs = folder_pairs(first, second)
    return len(first) - len({id(b) for _, b in pairs}), len(second) - len(pairs)


def _for_programs(question: CompareOptions, answer: ComparisonTable) -> dict[str, Any]:
    return {
        "folders": [str(folder) for folder in question.folders],
        "engines": list(question.engines),
        "figure": question.figure,
        "comparisons": [one.to_json() for one in answer.compared],
        "sentence": answer.sentence,
        "caveats": answer.caveats,
    }


WIDEST = 16  # letters of a heading
LESS = {"faster": "less", "slower": "more"}  # of what is used up


@dataclass(frozen=True)
class ComparisonTable:
    """What came out, ready to be shown."""

    compared: Sequence[Comparison]
    sides: tuple[str, str]  # headings over the medians of the first and the other of each
    sentence: str
    caveats: list[str]

    def show(self, console: Console) -> None:
        """Print table, sentence and caveats."""
        words = list(dict.fromkeys(one.figure.label for one in self.compared))
        console.print(f"{', '.join(words)}: {self.sides[0]} as a multiple of {self.sides[1]}", style="dim")
        console.print(table(_columns(self), console.width, [None] * len(self.compared), folds=True))
        console.print(f"\n{self.sentence}")
        for caveat in self.caveats:
            console.print(caveat)


def told(compared: Sequence[Comparison], first: str, other: str, alone: tuple[int, int] = (0, 0)) -> ComparisonTable:
    """Put comparisons into words; `first` and `other` are what their two sides are called."""
    caveats = [*_indicative(compared), *_bands(compared), *_left_out(compared, (first, other), alone)]
    records = [record for _, record in _measured(compared)]
    caveats += [*_places(compared, (first, other)), *disturbances(records), *arithmetic(_groups(compared))]
    caveats += [usual] if (usual := usual_settings(_groups(compared))) else []
    return ComparisonTable(compared, (first, other), _sentence(compared, (first, other)), caveats)


def _columns(answer: ComparisonTable) -> list[Column]:
    compared = answer.compared

    def medians(which: int) -> list[str]:
        return [one.figure.format((one.a, one.b)[which].median(one.figure.value)) for one in compared]

    several = len({one.figure.label for one in compared}) > 1
    return [
        Column("setting", _settings(answer), shrinks=True),
        *([Column("figure", [one.figure.label for one in compared], 50)] if several else []),
        Column(_heading(answer.sides[0]), medians(0), ALWAYS, right=True),
        Column(_heading(answer.sides[1]), medians(1), ALWAYS, right=True),
        Column("ratio", [_ratio(one) for one in compared], ALWAYS, right=True),
        Column("from to", [_interval(one) for one in compared], ALWAYS, right=True),
        Column("n", [str(one.n) for one in compared], 70, right=True),
        Column("verdict", [_verdict(one) for one in compared], ALWAYS),
    ]


def _settings(answer: ComparisonTable) -> list[str]:
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
    return ratio_text(one.ratio) if one.ratio and math.isfinite(one.ratio) else "-"


def _interval(one: Comparison) -> str:
    return "-" if one.low is None or one.n == 1 else f"{ratio_text(one.low)} to {ratio_text(one.high)}"


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
        return f"{compared[0].names[1]} has the best {compared[0].figure.label}; of {len(compared)} others: {counts}."
    known = [one.ratio for one in compared if one.ratio and math.isfinite(one.ratio)]
    mean = math.exp(math.fsum(map(math.log, known)) / len(known)) if known else None
    over = f"; over all of them {ratio_text(mean)} times (geometric mean)" if len(known) == len(compared) else ""
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
    hosts = [sorted({str(record.environment.get("host")) for record in side}) for side in _count_records(compared)]
    said = []
    if hosts[0] != hosts[1]:
        said.append(f"They were not run on the same machines: {', '.join(hosts[0])} and {', '.join(hosts[1])}.")
    same = [one for one in compared if one.a.first.engine == one.b.first.engine]
    for engine in dict.fromkeys(one.a.first.engine for one in same):
        new, old = (_versions(side, engine) for side in _count_records(same))
        if new != old:
            said.append(f"{engine} was {new} in {sides[0]} and {old} in {sides[1]}.")
    return said


def _versions(records: Sequence[Record], engine: str) -> str:
    return ", ".join(sorted({record.engine_version for record in records if record.engine == engine}))


def _count_records(compared: Sequence[Comparison]) -> tuple[list[Record], list[Record]]:
    return (
        [record for one in compared for record in one.a.records],
        [record for one in compared for record in one.b.records],
    )


def _groups(compared: Sequence[Comparison]) -> list[SettingGroup]:
    return list({id(group): group for one in compared for group in (one.b, one.a)}.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="results, or published:NAME; a second is compared with it"
    )
    parser.add_argument(
        "--engines", nargs=2, default=[], metavar=("A", "B"), help="compare these; else all with the best"
    )
    others = "train_s, cold_s, cpu_s, peak_memory_bytes, network_bytes, cost_usd, samples_per_s"
    parser.add_argument(
        "--figure", default="time_to_target", metavar="NAME", help=f"what to compare by (time_to_target); also {others}"
    )
    parser.add_argument(
        "--target", type=float, metavar="T", help="the target to be timed; the headline target by default"
    )


def execute(options: argparse.Namespace) -> int:
    asked = CompareOptions(options.folders, options.engines, options.figure, options.target)
    return compare_folders(asked, options.json, common.console())
