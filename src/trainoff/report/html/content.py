"""Everything that the report says, gathered from a folder of records: the template only sets it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainoff import __version__
from trainoff.analysis import (
    SAME,
    SettingGroup,
    batch_lines,
    bounds,
    by_workload,
    cautions,
    correlation_lines,
    disturbances,
    failure,
    groups,
    headline,
    headline_target,
    newest,
    priced,
    quiets,
    ranked,
    start_costs,
    unnamed,
    unpriced,
    worker_lines,
)
from trainoff.analysis.format import count, listed
from trainoff.records import STUDY_COPY, DamagedRecord, Record
from trainoff.report.html.chart_choice import drawn, looks_of
from trainoff.report.html.chart_data import ChartContext, SeriesCache
from trainoff.report.html.charts import Chart
from trainoff.report.html.style import Look, looks
from trainoff.report.html.tables import Board, FaultTable, NodeRow, Noise, board, certificates, faults, node_table
from trainoff.reproductions.published import published_name, records_of
from trainoff.study.prices import PriceBook

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
    records, damaged = records_of(folder) if folder.is_dir() or published_name(folder) else ([], [])
    return compose(folder, priced(records, book) if book else records, damaged, book)


def compose(
    folder: Path, records: Sequence[Record], damaged: Sequence[DamagedRecord], book: PriceBook | None = None
) -> Content:
    """What there is to say about records that were read already; their curves are read here."""
    latest = newest(records)
    found = groups(latest)
    source = _study(folder)
    shown = looks(record.engine for record in latest)
    noise = {id(record): verdict for record, verdict in zip(latest, quiets(latest), strict=True)}
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
    said = [*start_costs(found), *bounds(found), *batch_lines(found), *correlation_lines(found)]
    return [*said, usual] if (usual := unnamed(found)) else said


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
    told = [f"{listed(slow)} asked for more cores than the machine has."] if slow else []
    return [*told, f"Nodes of {listed(full)} have more memory together than the machine."] if full else told


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
