"""Everything that the report says, gathered from a folder of records: the template only sets it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainoff import __version__
from trainoff.analysis import (
    SAME,
    Comparison,
    NoiseReport,
    SettingGroup,
    batch_lines,
    bottleneck,
    bound_sentences,
    by_workload,
    cautions,
    comparisons,
    correlation_lines,
    disturbances,
    failure,
    fault_effects,
    groups,
    headline,
    headline_target,
    newest,
    noise_reports,
    priced,
    ranked,
    start_costs,
    unpriced,
    usual_settings,
    worker_lines,
)
from trainoff.analysis.bottleneck import node_rows
from trainoff.analysis.format import (
    count,
    join_names,
    node_size,
    quality,
    ratio_text,
    seconds,
    size,
    span,
    target_text,
    value_text,
)
from trainoff.records import STUDY_COPY, DamagedRecord, Record
from trainoff.report.html.chart_data import ChartContext, SeriesCache
from trainoff.report.html.charts import Chart, drawn, looks_of
from trainoff.report.html.style import Look, looks
from trainoff.report.tables import columns, heading, setting
from trainoff.reproductions.published import published_name, read_records
from trainoff.study.machines import PriceBook

DRAWN = 300  # settings of a workload that are drawn; the table and the exports have more
TOLD = 100  # failures whose last words travel with the page
WORDS = 6000  # letters of them


@dataclass(frozen=True)
class ReportFailure:
    """A trial that did not end well: which, why, and its last words."""

    name: str
    engine: str
    status: str
    sentence: str
    words: str


@dataclass(frozen=True)
class WorkloadSection:
    """One workload's part of the page."""

    name: str
    winner: str
    others: str  # how they did beside the winner
    cautions: Sequence[str]
    settings: int
    left_out: int
    board: Board
    charts: Sequence[Chart]
    workers: Sequence[tuple[str, str]]
    faults: FaultTable | None
    certificates: Sequence[dict[str, str]]
    nodes: Sequence[NodeRow]
    failures: Sequence[ReportFailure]
    more_failures: int


@dataclass(frozen=True)
class Content:
    """The whole page, before it is set."""

    title: str
    made: str
    version: str
    answers: Sequence[str]  # a line for each workload
    others: str  # how the others did, where there is but one
    assurances: Sequence[str]  # what speaks for believing it
    caveats: Sequence[str]
    remarks: Sequence[str]
    looks: Sequence[Look]
    workloads: Sequence[WorkloadSection]
    counts: str
    damaged: Sequence[str]
    environment: Sequence[tuple[str, str]]
    study: str | None
    command: str | None
    unpriced: str | None = None  # why there is no money in it


def gather(folder: Path, book: PriceBook | None = None) -> Content:
    """Read a folder, or what was published, and put together what there is to say about it."""
    records, damaged = read_records(folder) if folder.is_dir() or published_name(folder) else ([], [])
    return compose(folder, priced(records, book) if book else records, damaged, book)


def compose(
    folder: Path, records: Sequence[Record], damaged: Sequence[DamagedRecord], book: PriceBook | None = None
) -> Content:
    """What there is to say about records that were read already; their curves are read here."""
    latest = newest(records)
    found = groups(latest)
    source = _study(folder)
    shown = looks(record.engine for record in latest)
    noise = {id(record): verdict for record, verdict in zip(latest, noise_reports(latest), strict=True)}
    cache = SeriesCache(folder)
    workloads = [_workload(own, cache, shown, noise) for own in by_workload(found)]
    return Content(
        title=folder.resolve().name,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        answers=_answers(workloads),
        others=workloads[0].others if len(workloads) == 1 else "",
        assurances=_assurances(workloads),
        caveats=[*_caveats(workloads), *disturbances(latest), *_crowded(latest)],
        remarks=_remarks(found),
        looks=shown,
        workloads=workloads,
        counts=_counts(found, latest),
        damaged=[*(_told(one) for one in damaged), *cache.damaged],
        environment=environment(latest),
        study=source,
        command=_command(source),
        unpriced=unpriced(latest, book),
    )


def _remarks(found: Sequence[SettingGroup]) -> list[str]:
    """What else is worth knowing, and what the names of settings leave out."""
    said = [*start_costs(found), *bound_sentences(found), *batch_lines(found), *correlation_lines(found)]
    return [*said, usual] if (usual := usual_settings(found)) else said


def _answers(workloads: Sequence[WorkloadSection]) -> list[str]:
    """The first lines of the page: who won, on each workload."""
    if not workloads:
        return ["There are no records here yet."]
    several = len(workloads) > 1
    return [f"{one.name}: {one.winner}." if several else f"{one.winner}." for one in workloads]


def _caveats(workloads: Sequence[WorkloadSection]) -> list[str]:
    several = len(workloads) > 1
    return [f"{one.name}: {said}" if several else said for one in workloads for said in one.cautions if said != SAME]


def _assurances(workloads: Sequence[WorkloadSection]) -> list[str]:
    """That the work was the same: once if that holds everywhere, else by the workloads where it does."""
    same = [one.name for one in workloads if SAME in one.cautions]
    return [SAME] if same and len(same) == len(workloads) else [f"{name}: {SAME}" for name in same]


def _workload(own: Sequence[SettingGroup], cache: SeriesCache, shown: Sequence[Look], noise: Noise) -> WorkloadSection:
    order, target = [_at_home(group) for group in ranked(own)], headline_target(own)
    context = ChartContext(order[:DRAWN], cache)
    by_engine = {one.name: one for one in shown}
    winner, others = headline(order)
    failed = [(group, record) for group in order for record in group.records if record.status != "ok"]
    return WorkloadSection(
        name=own[0].first.workload,
        winner=winner,
        others=_others(others),
        cautions=cautions(order),
        settings=len(order),
        left_out=max(0, len(order) - DRAWN),
        board=board(order, target, noise, looks_of(context) or [by_engine[group.first.engine] for group in order]),
        charts=drawn(context, shown),
        workers=[(name, ", ".join(parts)) for name, parts in worker_lines(order[:DRAWN])],
        faults=faults(order),
        certificates=certificates(order[:DRAWN]),
        nodes=node_table(order[:DRAWN]),
        failures=[_failure(group, record) for group, record in failed[:TOLD]],
        more_failures=max(0, len(failed) - TOLD),
    )


def _others(said: str) -> str:
    """The second half of a headline as a sentence of its own."""
    began = "That is " if said.startswith(",") else ""
    return "" if said == "." else began + said.lstrip(",; ")


def _at_home(group: SettingGroup) -> SettingGroup:
    """A group under its workload's own heading need not name it."""
    return replace(group, label={key: value for key, value in group.label.items() if key != "workload"})


def _failure(group: SettingGroup, record: Record) -> ReportFailure:
    words = record.traceback or record.log_tail or ""
    return ReportFailure(
        f"{group.name}, seed {record.seed}", record.engine, record.status, failure(record), words[-WORDS:]
    )


def _told(one: DamagedRecord) -> str:
    return f"{one.folder}: {one.why}"


def _crowded(records: Sequence[Record]) -> list[str]:
    """Who asked for more than the machine has."""
    crowded = [record for record in records if record.oversubscribed]
    slow = sorted({record.engine for record in crowded if record.cluster != "lab"})
    full = sorted({record.engine for record in crowded if record.cluster == "lab"})
    told = [f"{join_names(slow)} asked for more cores than the machine has."] if slow else []
    return [*told, f"Nodes of {join_names(full)} have more memory together than the machine."] if full else told


def _counts(found: Sequence[SettingGroup], latest: Sequence[Record]) -> str:
    good = sum(record.status == "ok" for record in latest)
    ended = f"{good:,} ended well" if good < len(latest) else "all ended well"
    return f"{count(len(found), 'setting')}, {count(len(latest), 'trial')}, {ended}" if latest else "no trials"


def environment(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The machines and versions; where records differ, all of them."""
    rows: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in _conditions(record):
            rows.setdefault(name, {})[value] = None
    return [(name, "; ".join(values)) for name, values in rows.items()]


def _conditions(record: Record) -> list[tuple[str, str]]:
    found = record.environment
    memory = found.get("memory_bytes")
    cpus = f"{found['cpus']} CPUs" if found.get("cpus") else ""
    machine = [str(found.get("cpu", "")), cpus, f"{memory / 2**30:.0f} GiB" if memory else ""]
    commit = found.get("commit") or {}
    changed = ", changed" if commit.get("changed") else ""
    versions = ", ".join(f"{name} {version}" for name, version in (found.get("packages") or {}).items())
    told = {
        "machine": ", ".join(part for part in machine if part),
        "system": found.get("system"),
        "python": found.get("python"),
        "java": found.get("java"),
        "libraries": versions,
        "linear algebra": found.get("blas"),
        "isolation": record.isolation.get("kind"),
        "trainoff": f"{found.get('trainoff')} ({str(commit.get('sha', ''))[:10]}{changed})" if commit else None,
        "data": f"{record.dataset.get('name')} {str(record.dataset.get('identity', ''))[:12]}"
        if record.dataset
        else None,
    }
    return [(name, str(value)) for name, value in told.items() if value]


def _study(folder: Path) -> str | None:
    """The study file that the records came from, if the run left a copy; of a folder of studies, all of them."""
    copies = [folder / STUDY_COPY, *sorted(folder.glob(f"*/{STUDY_COPY}"))]
    return "\n\n".join(path.read_text(errors="replace") for path in copies if path.is_file()) or None


def _command(study: str | None) -> str | None:
    """The commands that repeat it; every copy of a study begins with its own."""
    said = [line.removeprefix("# ") for line in (study or "").splitlines() if line.startswith("# trainoff run")]
    return "\n".join(said) or None


def as_script(value: Any) -> str:
    """JSON that may stand inside a script element, whatever words are in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII, so no odd line ends either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


Noise = Mapping[int, NoiseReport]  # the verdict on every record, by its identity
ROWS = 500  # of a board; the exports have them all
MEANINGS = {  # of headings that do not explain themselves
    "against the first": "times as long as the first one took to the target",
    "train": "seconds inside training, without the pauses for snapshots",
    "cold": "seconds of the whole trial, from its first process to its last",
    "CPU": "seconds of all cores in all processes of the trial",
    "memory": "of all processes together, at most",
    "network": "between the processes of the trial",
    "runs": "those that ended well, of all",
    "arithmetic": "whether the weights went the way of the reference",
}


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the value it is sorted by."""

    text: str
    value: float | str
    more: str = ""  # said below, smaller


@dataclass(frozen=True)
class BoardRow:
    """A setting on the board, and what unfolds when one clicks on it."""

    engine: str
    look: Look
    good: bool
    cells: Sequence[Cell]
    details: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Board:
    """The leader board: headings, whether a column holds figures, and the lines, the best first."""

    headings: Sequence[tuple[str, bool]]
    lines: Sequence[BoardRow]
    left_out: int


def board(order: Sequence[SettingGroup], target: float | None, noise: Noise, looks: Sequence[Look]) -> Board:
    """The settings of one workload, each in its look; empty columns are left out."""
    metric = order[0].first.metric
    keys = list(dict.fromkeys(key for group in order for key in group.label if key != "workload"))
    goal = f"to {target_text(metric, target)}" if target is not None else "to target"
    figures = (goal, "against the first", metric, "train", "cold", "CPU", "memory", "network", "runs")
    names = [
        *((name, False) for name in ("engine", *([heading(keys)] if keys else []), "mode")),
        *((name, True) for name in ("workers", *figures)),
        ("arithmetic", False),
    ]
    beside = {id(one.a): one for one in comparisons(order, target)}
    rows = [_cells(group, keys, target, beside.get(id(group))) for group in order[:ROWS]]
    used = [at for at in range(len(names)) if at < 2 or any(row[at].text not in ("-", "") for row in rows)]
    lines = [
        BoardRow(
            group.first.engine,
            own,
            bool(group.good),
            [row[at] for at in used],
            _details(group, noise),
        )
        for group, row, own in zip(order, rows, looks, strict=False)
    ]
    return Board([names[at] for at in used], lines, max(0, len(order) - ROWS))


def _cells(group: SettingGroup, keys: Sequence[str], target: float | None, beside: Comparison | None) -> list[Cell]:
    first = group.first
    told_setting = setting([group.label.get(key, "-") for key in keys])
    return [
        Cell(first.engine, first.engine),
        *([Cell(told_setting, told_setting)] if keys else []),
        Cell(first.mode, first.mode),
        Cell(str(first.workers or "-"), first.workers),
        _time(group, target),
        _beside(beside),
        _cell(group.median(lambda record: record.result), quality),
        _cell(group.median(lambda record: record.train_s), seconds),
        _cell(group.median(lambda record: record.cold_s), seconds),
        _cell(group.median(lambda record: record.cpu_s), seconds),
        _cell(group.median(lambda record: record.peak_memory_bytes), size),
        _cell(group.median(lambda record: record.network_bytes), size),
        Cell(f"{len(group.good)}/{len(group.records)}", len(group.good)),
        _outcome(group),
    ]


def _cell(value: float | None, text: Callable[[float | None], str]) -> Cell:
    return Cell(text(value), math.inf if value is None else value)


def _time(group: SettingGroup, target: float | None) -> Cell:
    found = group.spread(target) if target is not None else None
    if found is None or not math.isfinite(found.median):
        return Cell("-", math.inf)
    return Cell(seconds(found.median), found.median, span(found.low, found.high) if found.n > 1 else "")


def _beside(found: Comparison | None) -> Cell:
    """How many times as long as the first one a setting took, and the verdict where there are enough pairs for one."""
    if found is None or not found.ratio or not math.isfinite(found.ratio):
        return Cell("-", math.inf)
    sure = found.low is not None and found.high is not None and found.n > 1
    spread = f"{ratio_text(found.low)} to {ratio_text(found.high)}" if sure else ""
    verdict = "" if found.indicative else f"{found.verdict}: " if spread else found.verdict
    return Cell(f"{ratio_text(found.ratio)}×", found.ratio, verdict + spread)


def _outcome(group: SettingGroup) -> Cell:
    """The certificate of a setting that ended well, else how it ended."""
    text = str(group.good[0].equivalence.get("verdict") or "not checked") if group.good else group.first.status
    wrong = sum(record.status == "wrong-result" for record in group.records)
    return Cell(text, text, f"wrong in {wrong} of {len(group.records)}" if wrong and group.good else "")


def _details(group: SettingGroup, noise: Noise) -> list[tuple[str, str]]:
    """What there is to know about a setting beyond its line."""
    record = (group.good or group.records)[0]
    parameters = ", ".join(
        f"{key.replace('_', ' ')} {value_text(value)}" for key, value in record.params.items() if value is not None
    )
    held = bottleneck(record)
    roles = ", ".join(f"{role} {seconds(spent)}" for role, spent in record.cpu_s_by_role.items())
    memory = ", ".join(f"{role} {size(peak)}" for role, peak in record.peak_memory_bytes_by_role.items())
    found = {
        "parameters": parameters,
        "a node": node_size(record.cores, record.memory_gb),
        "seeds": ", ".join(
            f"{one.seed} ({one.status})" if one.status != "ok" else str(one.seed) for one in group.records
        ),
        "certificate": _certificate(record),
        "CPU by role": roles,
        "memory by role": memory,
        "bound": str(held) if held else "",
        "machine": _noise(group, noise),
        "speed": f"{record.samples_per_s:,.0f} samples/s" if record.samples_per_s else "",
        "counts": ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in record.counts.items()),
        "notes": "; ".join(record.notes.values()),
        "version": record.engine_version,
        "record": record.trial_id,
    }
    return [(name, value) for name, value in found.items() if value]


def _noise(group: SettingGroup, noise: Noise) -> str:
    """How quiet the machine was, of all runs."""
    judged = [noise[id(record)] for record in group.records if id(record) in noise]
    loud = [one for one in judged if one.verdict == "disturbed"]
    if loud:
        return f"disturbed in {len(loud)} of {len(judged)} runs: {'; '.join(loud[0].reasons)}"
    return judged[0].verdict if judged else ""


def _certificate(record: Record) -> str:
    found = record.equivalence
    if not found.get("verdict"):
        return ""
    distance, reason = found.get("max_rel_diff"), found.get("reason")
    return " ".join(
        part
        for part in (
            str(found["verdict"]),
            f"(distance {distance:.2g})" if distance is not None else "",
            f"({reason})" if reason else "",
        )
        if part
    )


@dataclass(frozen=True)
class NodeRow:
    """One emulated node of a setting, in words."""

    engine: str
    setting: str
    cells: Sequence[str]


def node_table(order: Sequence[SettingGroup]) -> list[NodeRow]:
    """The emulated nodes of every setting, as its first run had them."""
    return [
        NodeRow(group.first.engine, group.name, cells)
        for group in order
        for cells in node_rows(group.good[0] if group.good else group.first)
    ]


@dataclass(frozen=True)
class FaultTable:
    """What the faults did: headings, whether a column holds figures, and for each its engine and its cells."""

    headings: Sequence[tuple[str, bool]]
    lines: Sequence[tuple[str, Sequence[str]]]


def faults(order: Sequence[SettingGroup]) -> FaultTable | None:
    """The settings that something was done to; None if there are none."""
    if not (found := fault_effects(order)):
        return None
    told_of = columns(found)
    return FaultTable(
        [(told.heading, told.figures) for told in told_of],
        [(one.group.first.engine, [told.cell(one) for told in told_of]) for one in found],
    )


def certificates(order: Sequence[SettingGroup]) -> list[dict[str, str]]:
    """How far every setting was from the reference after 1 and 20 steps."""
    rows = []
    for group in order:
        found = (group.good or group.records)[0].equivalence
        if found.get("verdict"):
            steps = ", ".join(f"{distance:.2g} at step {step}" for step, distance in (found.get("steps") or {}).items())
            rows.append({"name": group.name, "engine": group.first.engine, "verdict": str(found["verdict"]),
                         "distance": steps, "reason": str(found.get("reason") or "")})  # fmt: skip
    return rows
