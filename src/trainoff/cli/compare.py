"""`trainoff compare`: compare two folders, two engines, or every setting with the best one."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from trainoff.analysis import Comparison, SettingGroup, by_workload, disturbances, groups, newest, usual_settings
from trainoff.analysis.compare import (
    RANKING,
    Match,
    Pair,
    adjusted,
    against_best,
    band_of,
    compare_all,
    engine_pairs,
    folder_pairs,
)
from trainoff.analysis.figures import FIGURES, TIME_TO_TARGET, Figure, time_to
from trainoff.analysis.format import count, join_names, ratio_text
from trainoff.analysis.ranking import check_target, headline_target, not_timed, sort_by_figure
from trainoff.analysis.summary import arithmetic
from trainoff.cli import common
from trainoff.cli.show import warn
from trainoff.errors import TrainoffError
from trainoff.records import PUBLISHED, Record
from trainoff.report.tables import ALWAYS, Column, table
from trainoff.reproductions.published import require_records
from trainoff.study.suggestions import quote, suggest

MAX_HEADING = 16  # letters
LESS = {"faster": "less", "slower": "more"}  # verdicts on a figure that counts what is used


@dataclass(frozen=True)
class CompareOptions:
    """The options of `trainoff compare`."""

    folders: Sequence[Path]
    engines: Sequence[str]
    figure: str
    target: float | None


@dataclass(frozen=True)
class ComparisonTable:
    """The comparisons with the headings of their two sides, a closing sentence and caveats."""

    compared: Sequence[Comparison]
    sides: tuple[str, str]  # headings over the medians of the first and the second of each
    sentence: str
    caveats: Sequence[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    add = parser.add_argument
    about = "results, or published:NAME; a second to compare with it"
    add("folders", type=Path, nargs="+", metavar="DIR", help=about)
    add("--engines", nargs=2, default=[], metavar=("A", "B"), help="compare these (all with the best one)")
    about = f"figure to compare by (time_to_target); also {', '.join(FIGURES)}"
    add("--figure", default=TIME_TO_TARGET, metavar="NAME", help=about)
    add("--target", type=float, metavar="T", help="compare the times to this target (the headline target)")


def execute(given: argparse.Namespace) -> int:
    """Print the comparisons as a table or as JSON; exit code 1 if a record is damaged."""
    options = CompareOptions(given.folders, given.engines, given.figure, given.target)
    _check_options(options)
    read = [require_records(folder) for folder in options.folders]
    records = [newest(found) for found, _ in read]
    for found, folder in zip(records, options.folders, strict=True):
        _check_engines(options.engines, found, folder)
    result = _compare(options, records)
    if given.json:
        print(json.dumps(_to_json(options, result), indent=1, allow_nan=False))
    else:
        _print_table(result, common.console())
    return warn([one for _, damaged in read for one in damaged])


def _check_options(options: CompareOptions) -> None:
    if len(options.folders) > 2:
        raise TrainoffError(f"compare takes one folder or two, and {len(options.folders)} were given")
    names = [TIME_TO_TARGET, *FIGURES]
    if options.figure not in names:
        hint = suggest(options.figure, names, "the figures are")
        raise TrainoffError(f"--figure {quote(options.figure)} is not a figure to compare; {hint}")
    if options.target is not None and options.figure != TIME_TO_TARGET:
        raise TrainoffError(f"--target belongs to --figure {TIME_TO_TARGET}, not to {options.figure}")
    check_target(options.target)
    if len(options.folders) == 1 and len(set(options.engines)) == 1:
        raise TrainoffError(f"--engines {' '.join(options.engines)}: an engine is not compared with itself; name two")


def _check_engines(engines: Sequence[str], records: Sequence[Record], folder: Path) -> None:
    known = sorted({record.engine for record in records})
    for name in engines:
        if name not in known:
            hint = suggest(name, known, "it has")
            raise TrainoffError(f"--engines: {folder} has no record of {quote(name)}; {hint}")


def _compare(options: CompareOptions, records: Sequence[Sequence[Record]]) -> ComparisonTable:
    """Compare workload by workload what the options select."""
    found = [groups(each) for each in records]
    every = [group for each in found for group in each]
    figures = _figures(options, every)
    pairs = [pair for pair in _pairs(options, found, figures) if pair[0].first.workload in figures]
    two = len(options.folders) == 2
    matches: dict[str, list[Match]] = {}  # by workload, because each is judged by itself
    for a, b in pairs:
        figure = figures[a.first.workload]
        match = Match(a, b, figure, band_of(every, figure), _names(options, a, b), across=two)
        matches.setdefault(a.first.workload, []).append(match)
    adjust = adjusted if two or options.engines else against_best
    compared = [one for own in matches.values() for one in compare_all(own, adjust)]
    if not any(one.n for one in compared):
        raise TrainoffError("no repetition was done by both within one study, so there are no pairs to compare")
    sides = _sides(options, compared)
    unpaired = _unpaired(options, found) if two else (0, 0)
    caveats = [*_without_figure(options, every, figures), *_caveats(compared, sides, unpaired)]
    return ComparisonTable(compared, sides, _sentence(compared, sides), caveats)


def _pairs(
    options: CompareOptions, found: Sequence[Sequence[SettingGroup]], figures: Mapping[str, Figure]
) -> list[Pair]:
    """Return the pairs of settings to compare; raise an error if there are none."""
    if len(found) == 2:
        pairs = folder_pairs(*found)
        if options.engines:
            pairs = [pair for pair in pairs if pair[0].first.engine in options.engines]
        reason = "have no setting in common: engine, workload, cluster and parameters must be alike"
    elif options.engines:
        pairs = engine_pairs(found[0], *options.engines)
        reason = f"has no workload and parameters that {' and '.join(options.engines)} have in common"
    else:
        pairs = []
        for own in by_workload(found[0]):
            figure = figures.get(own[0].first.workload)
            ranked = sort_by_figure(own, figure) if figure else []
            pairs += [(group, ranked[0]) for group in ranked[1:]]
        reason = "has only one setting, and nothing to compare it with"
    if not pairs:
        raise TrainoffError(f"{' and '.join(map(str, options.folders))} {reason}")
    return pairs


def _figures(options: CompareOptions, found: Sequence[SettingGroup]) -> dict[str, Figure]:
    """Return the figure to compare by for each workload; workloads that reached no target have none."""
    if options.figure != TIME_TO_TARGET:
        figure = FIGURES[options.figure]
        if all(figure.value(record) is None for group in found for record in group.records):
            hint = "choose another --figure"
            if options.figure == "cost_usd":
                hint = f"`trainoff show {options.folders[0]} --prices FILE` shows it by a price book"
            raise TrainoffError(f"no trial here has its {figure.label} on record; {hint}")
        return {group.first.workload: figure for group in found}
    figures = {}
    for own in by_workload(found):
        target = headline_target(own) if options.target is None else options.target
        if target is not None and any(str(target) in group.first.time_to_target for group in own):
            figures[own[0].first.workload] = time_to(target, own[0].first.metric)
    if figures:
        return figures
    if options.target is None:
        raise TrainoffError("no trial reached a target, so there is no time to compare; try --figure train_s")
    raise not_timed([record for group in found for record in group.records], options.target)


def _without_figure(options: CompareOptions, found: Sequence[SettingGroup], figures: Mapping[str, Figure]) -> list[str]:
    """Return a caveat on the workloads that have no figure to compare by."""
    names = [name for name in dict.fromkeys(group.first.workload for group in found) if name not in figures]
    if not names:
        return []
    reason = "no trial reached a target" if options.target is None else f"{options.target:g} was not timed"
    return [f"{join_names(names)} {'is' if len(names) == 1 else 'are'} left out: {reason}; try --figure train_s."]


def _names(options: CompareOptions, a: SettingGroup, b: SettingGroup) -> tuple[str, str]:
    if len(options.folders) == 1:
        return a.name, b.name
    first, second = options.folders
    return f"{a.name} in {second}", f"{b.name} in {first}"


def _sides(options: CompareOptions, compared: Sequence[Comparison]) -> tuple[str, str]:
    """Return the headings over the medians of the first and the second of every comparison."""
    if len(options.folders) == 2:
        first, second = options.folders
        return (second.name, first.name) if first.name != second.name else ("second", "first")
    if options.engines:
        return options.engines[0], options.engines[1]
    best = {id(one.b): one.b.name for one in compared}
    return "each", next(iter(best.values())) if len(best) == 1 else "the best"


def _unpaired(options: CompareOptions, found: Sequence[Sequence[SettingGroup]]) -> tuple[int, int]:
    """Count the settings that are only in the first folder, and only in the second."""
    first, second = (
        [group for group in side if not options.engines or group.first.engine in options.engines] for side in found
    )
    pairs = folder_pairs(first, second)
    return len(first) - len({id(b) for _, b in pairs}), len(second) - len(pairs)


def _to_json(options: CompareOptions, result: ComparisonTable) -> dict[str, Any]:
    return {
        "folders": [str(folder) for folder in options.folders],
        "engines": list(options.engines),
        "figure": options.figure,
        "comparisons": [one.to_json() for one in result.compared],
        "sentence": result.sentence,
        "caveats": result.caveats,
    }


def _print_table(result: ComparisonTable, console: Console) -> None:
    labels = list(dict.fromkeys(one.figure.label for one in result.compared))
    console.print(f"{', '.join(labels)}: {result.sides[0]} as a multiple of {result.sides[1]}", style="dim")
    console.print(table(_columns(result), console.width, folds=True))
    console.print(f"\n{result.sentence}")
    for caveat in result.caveats:
        console.print(caveat)


def _columns(result: ComparisonTable) -> list[Column]:
    compared = result.compared

    def medians(side: int) -> list[str]:
        return [one.figure.format((one.a, one.b)[side].median(one.figure.value)) for one in compared]

    def interval(one: Comparison) -> str:
        return "-" if one.low is None or one.n == 1 else f"{ratio_text(one.low)} to {ratio_text(one.high)}"

    several = len({one.figure.label for one in compared}) > 1
    headings = [side.partition(" (")[0][-MAX_HEADING:] for side in result.sides]  # the engine, the end of a long name
    ratios = [ratio_text(one.ratio) if one.ratio and math.isfinite(one.ratio) else "-" for one in compared]
    return [
        Column("setting", _settings(result), shrinks=True),
        *([Column("figure", [one.figure.label for one in compared], 50)] if several else []),
        Column(headings[0], medians(0), ALWAYS, right=True),
        Column(headings[1], medians(1), ALWAYS, right=True),
        Column("ratio", ratios, ALWAYS, right=True),
        Column("from to", [interval(one) for one in compared], ALWAYS, right=True),
        Column("n", [str(one.n) for one in compared], 70, right=True),
        Column("verdict", [_verdict(one) for one in compared], ALWAYS),
    ]


def _settings(result: ComparisonTable) -> list[str]:
    """Return the names of the settings, without the engine if the heading names it."""
    names = [one.a.name for one in result.compared]
    engine = result.sides[0]
    if len(names) == 1 or any(one.a.first.engine != engine for one in result.compared):
        return names
    return [name.removeprefix(engine).strip() or name for name in names]


def _verdict(one: Comparison) -> str:
    if one.indicative:
        return "indicative"
    return LESS.get(one.verdict, one.verdict) if "used" in one.figure.neutral else one.verdict


def _sentence(compared: Sequence[Comparison], sides: tuple[str, str]) -> str:
    if len(compared) == 1:
        return compared[0].sentence
    verdicts = Counter(_verdict(one) for one in compared)
    counts = ", ".join(f"{number} {'tied' if verdict == 'tie' else verdict}" for verdict, number in verdicts.items())
    if len({id(one.b) for one in compared}) == 1:
        return f"{compared[0].names[1]} has the best {compared[0].figure.label}; of {len(compared)} others: {counts}."
    known = [one.ratio for one in compared if one.ratio and math.isfinite(one.ratio)]
    mean = math.exp(math.fsum(map(math.log, known)) / len(known)) if known else None
    overall = f"; over all of them {ratio_text(mean)} times (geometric mean)" if len(known) == len(compared) else ""
    return f"{count(len(compared), 'setting')}, {sides[0]} compared with {sides[1]}: {counts}{overall}."


def _caveats(compared: Sequence[Comparison], sides: tuple[str, str], unpaired: tuple[int, int]) -> list[str]:
    every = list({id(group): group for one in compared for group in (one.b, one.a)}.values())
    measured = {id(record): (one.figure, record) for one in compared for record in (*one.a.records, *one.b.records)}
    usual = usual_settings(every)
    return [
        *_indicative(compared, [record for _, record in measured.values()]),
        *_bands(compared),
        *_left_out(list(measured.values()), sides, unpaired),
        *_environments(compared, sides),
        *disturbances([record for _, record in measured.values()]),
        *arithmetic(every),
        *([usual] if usual else []),
    ]


def _indicative(compared: Sequence[Comparison], records: Sequence[Record]) -> list[str]:
    few = sum(one.indicative for one in compared)
    if not few:
        return []
    if all(record.kind == PUBLISHED for record in records):
        return ["These are published figures of one run each: indicative."]
    if len(compared) == 1:
        return [f"--repeat {RANKING} adds pairs."]
    part = "" if few == len(compared) else f" in {few} of {len(compared)} settings"
    return [f"Fewer than {RANKING} pairs of repetitions{part}, so this is indicative: --repeat {RANKING} adds pairs."]


def _bands(compared: Sequence[Comparison]) -> list[str]:
    bands = dict.fromkeys(str(one.band) for one in compared if not one.indicative)
    return [f"Differences inside a band of {band}, are a tie." for band in bands]


def _left_out(runs: Sequence[tuple[Figure, Record]], sides: tuple[str, str], unpaired: tuple[int, int]) -> list[str]:
    sentences = [
        f"{count(number, 'setting')} only in {side} {'is' if number == 1 else 'are'} left out."
        for number, side in zip(unpaired, reversed(sides), strict=True)
        if number
    ]
    if without := sum(figure.value(record) is None for figure, record in runs):
        sentences.append(f"{count(without, 'trial')} without this figure {'is' if without == 1 else 'are'} in no pair.")
    return sentences


def _environments(compared: Sequence[Comparison], sides: tuple[str, str]) -> list[str]:
    """Return a caveat if the two sides ran on other machines, or with other versions of an engine."""

    def records(chosen: Sequence[Comparison]) -> list[list[Record]]:
        return [[record for one in chosen for record in (one.a, one.b)[side].records] for side in (0, 1)]

    sentences = []
    hosts = [sorted({str(record.environment.get("host")) for record in side}) for side in records(compared)]
    if hosts[0] != hosts[1]:
        sentences.append(f"They were not run on the same machines: {', '.join(hosts[0])} and {', '.join(hosts[1])}.")
    same = [one for one in compared if one.a.first.engine == one.b.first.engine]
    for engine in dict.fromkeys(one.a.first.engine for one in same):
        new, old = (
            ", ".join(sorted({record.engine_version for record in side if record.engine == engine}))
            for side in records(same)
        )
        if new != old:
            sentences.append(f"{engine} was {new} in {sides[0]} and {old} in {sides[1]}.")
    return sentences
