"""The content of the report, gathered from a folder of records; the template only lays it out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from trainoff import __version__, analysis
from trainoff.analysis import Comparison, SettingGroup
from trainoff.analysis.bottleneck import HEADINGS as NODE_HEADINGS
from trainoff.analysis.bottleneck import bottleneck, node_rows, worker_lines
from trainoff.analysis.faults import fault_effects
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
from trainoff.analysis.noise import NoiseReport, noise_reports
from trainoff.analysis.summary import SAME, cautions, headline, remarks
from trainoff.records import STUDY_COPY, DamagedRecord, Record
from trainoff.report.html.charts import Chart, ChartContext, SeriesReader, charts_of
from trainoff.report.html.style import Style, engine_styles
from trainoff.report.tables import MEDIANS, fault_columns, settings
from trainoff.reproductions.published import published_name, read_records
from trainoff.study.machines import PriceBook

MOST_CHARTED = 300  # settings of a workload in charts; the board and the exports have more
MOST_ROWS = 500  # of a board; the exports have all
MOST_FAILURES = 100  # with their logs
MOST_LOG = 6000  # characters of each


@dataclass(frozen=True)
class ReportFailure:
    """A trial that did not end well: its name, its status, the reason, and the end of its log."""

    name: str
    engine: str
    status: str
    sentence: str
    log: str


@dataclass(frozen=True)
class Table:
    """Headings, each with whether its column is numeric, and rows, each an engine and its cells."""

    headings: Sequence[tuple[str, bool]]
    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class WorkloadSection:
    """The section of one workload."""

    name: str
    winner: str
    others: str  # how the other settings compare with the winner
    cautions: Sequence[str]
    settings: int
    left_out: int
    board: Board
    charts: Sequence[Chart]
    workers: Sequence[tuple[str, str]]
    faults: Table
    certificates: Table
    nodes: Table
    failures: Sequence[ReportFailure]
    more_failures: int


@dataclass(frozen=True)
class Content:
    """The whole page."""

    title: str
    made: str
    version: str
    headlines: Sequence[str]  # one per workload
    others: str  # how the other settings compare with the winner, if there is only one workload
    assurances: Sequence[str]  # why the result can be trusted
    caveats: Sequence[str]
    remarks: Sequence[str]
    styles: Sequence[Style]
    workloads: Sequence[WorkloadSection]
    counts: str
    damaged: Sequence[str]
    environment: Sequence[tuple[str, str]]
    study: str | None
    command: str | None
    unpriced: str | None = None  # why there are no costs


def gather(folder: Path, book: PriceBook | None = None) -> Content:
    """Read the records of a folder, or published ones, and compose the report."""
    records, damaged = read_records(folder) if folder.is_dir() or published_name(folder) else ([], [])
    return compose(folder, analysis.priced(records, book) if book else records, damaged, book)


def compose(
    folder: Path, records: Sequence[Record], damaged: Sequence[DamagedRecord], book: PriceBook | None = None
) -> Content:
    """Compose the report of records that have been read; their series are read here."""
    latest = analysis.newest(records)
    found = analysis.groups(latest)
    # The copies of the study file that runs left, each of which begins with its command; a folder may have several.
    copies = [folder / STUDY_COPY, *sorted(folder.glob(f"*/{STUDY_COPY}"))]
    study = "\n\n".join(path.read_text(errors="replace") for path in copies if path.is_file())
    commands = [line.removeprefix("# ") for line in study.splitlines() if line.startswith("# trainoff run")]
    styles = engine_styles(record.engine for record in latest)
    noise = {id(record): report for record, report in zip(latest, noise_reports(latest), strict=True)}
    series = SeriesReader(folder)
    workloads = [_section(of_workload, series, styles, noise) for of_workload in analysis.by_workload(found)]
    headlines, warnings = [], []
    for one in workloads:
        prefix = f"{one.name}: " if len(workloads) > 1 else ""
        headlines.append(f"{prefix}{one.winner}.")
        warnings += [prefix + text for text in one.cautions if text != SAME]
    same = [one.name for one in workloads if SAME in one.cautions]
    assurances = [SAME] if same and len(same) == len(workloads) else [f"{name}: {SAME}" for name in same]
    usual = analysis.usual_settings(found)
    return Content(
        title=folder.resolve().name,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        headlines=headlines or ["There are no records here yet."],
        others=workloads[0].others if len(workloads) == 1 else "",
        assurances=assurances,
        caveats=[*warnings, *analysis.disturbances(latest), *_oversubscribed(latest)],
        remarks=[*remarks(found), *([usual] if usual else [])],
        styles=styles,
        workloads=workloads,
        counts=_counts(found, latest),
        damaged=[*(f"{one.folder}: {one.why}" for one in damaged), *series.damaged],
        environment=environment(latest),
        study=study or None,
        command="\n".join(commands) or None,
        unpriced=analysis.unpriced(latest, book),
    )


def _section(
    of_workload: Sequence[SettingGroup], series: SeriesReader, styles: Sequence[Style], noise: Noise
) -> WorkloadSection:
    order = [  # the heading of the section names the workload
        replace(group, label={key: value for key, value in group.label.items() if key != "workload"})
        for group in analysis.ranked(of_workload)
    ]
    context = ChartContext(order[:MOST_CHARTED], series, styles)
    by_engine = {style.name: style for style in styles}
    row_styles = context.setting_styles or [by_engine[group.first.engine] for group in order]
    winner, others = headline(order)
    failed = [(group, record) for group in order for record in group.records if record.status != "ok"]
    return WorkloadSection(
        name=of_workload[0].first.workload,
        winner=winner,
        others=_sentence(others),
        cautions=cautions(order),
        settings=len(order),
        left_out=max(0, len(order) - MOST_CHARTED),
        board=board(order, analysis.headline_target(of_workload), noise, row_styles),
        charts=charts_of(context),
        workers=[(name, ", ".join(parts)) for name, parts in worker_lines(order[:MOST_CHARTED])],
        faults=fault_table(order),
        certificates=certificate_table(order[:MOST_CHARTED]),
        nodes=node_table(order[:MOST_CHARTED]),
        failures=[_failure(group, record) for group, record in failed[:MOST_FAILURES]],
        more_failures=max(0, len(failed) - MOST_FAILURES),
    )


def _sentence(others: str) -> str:
    """Return the second half of a headline as a sentence."""
    start = "That is " if others.startswith(",") else ""
    return "" if others == "." else start + others.lstrip(",; ")


def _failure(group: SettingGroup, record: Record) -> ReportFailure:
    log = record.traceback or record.log_tail or ""
    name = f"{group.name}, seed {record.seed}"
    return ReportFailure(name, record.engine, record.status, analysis.failure(record), log[-MOST_LOG:])


def _oversubscribed(records: Sequence[Record]) -> list[str]:
    """Name the engines that requested more than the machine has."""
    records = [record for record in records if record.oversubscribed]
    cores = sorted({record.engine for record in records if record.cluster != "lab"})
    memory = sorted({record.engine for record in records if record.cluster == "lab"})
    return [
        *([f"{join_names(cores)} requested more cores than the machine has."] if cores else []),
        *([f"The nodes of {join_names(memory)} together have more memory than the machine."] if memory else []),
    ]


def _counts(found: Sequence[SettingGroup], latest: Sequence[Record]) -> str:
    good = sum(record.status == "ok" for record in latest)
    succeeded = f"{good:,} successful" if good < len(latest) else "all successful"
    return f"{count(len(found), 'setting')}, {count(len(latest), 'trial')}, {succeeded}" if latest else "no trials"


def environment(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the machines and versions; where records differ, all of them."""
    rows: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in _conditions(record).items():
            if value:
                rows.setdefault(name, {})[str(value)] = None
    return [(name, "; ".join(values)) for name, values in rows.items()]


def _conditions(record: Record) -> dict[str, Any]:
    facts = record.environment
    memory = facts.get("memory_bytes")
    cpus = f"{facts['cpus']} CPUs" if facts.get("cpus") else ""
    machine = [str(facts.get("cpu", "")), cpus, f"{memory / 2**30:.0f} GiB" if memory else ""]
    commit, data = facts.get("commit") or {}, record.dataset
    changed = ", changed" if commit.get("changed") else ""
    return {
        "machine": ", ".join(part for part in machine if part),
        "system": facts.get("system"),
        "python": facts.get("python"),
        "java": facts.get("java"),
        "libraries": ", ".join(f"{name} {version}" for name, version in (facts.get("packages") or {}).items()),
        "linear algebra": facts.get("blas"),
        "isolation": record.isolation.get("kind"),
        "trainoff": f"{facts.get('trainoff')} ({str(commit.get('sha', ''))[:10]}{changed})" if commit else None,
        "data": f"{data.get('name')} {str(data.get('identity', ''))[:12]}" if data else None,
    }


def as_script(value: Any) -> str:
    """Return JSON that is safe inside a script element, whatever texts it contains."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII, so without unusual line separators
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


Noise = Mapping[int, NoiseReport]  # by the identity of the record
MEANINGS = {  # tooltips of headings that need an explanation
    "against the first": "times as long as the first one took to the target",
    "train": "seconds inside training, without the pauses for snapshots",
    "cold": "seconds of the whole trial, from its first process to its last",
    "CPU": "seconds of all cores in all processes of the trial",
    "memory": "of all processes together, at the peak",
    "network": "between the processes of the trial",
    "runs": "successful runs, of all runs",
    "arithmetic": "whether the weights match those of the reference",
}


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and the value by which it is sorted, if that is not the text."""

    text: str
    value: float | None = None
    more: str = ""  # below the text, smaller


@dataclass(frozen=True)
class BoardRow:
    """A setting on the board, with the details that a click shows."""

    engine: str
    style: Style
    good: bool
    cells: Sequence[Cell]
    details: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Board:
    """The leader board: headings, each with whether its column is numeric, and rows, the best first."""

    headings: Sequence[tuple[str, bool]]
    rows: Sequence[BoardRow]
    left_out: int


def board(order: Sequence[SettingGroup], target: float | None, noise: Noise, styles: Sequence[Style]) -> Board:
    """Return the leader board of one workload, with a style per setting and without empty columns."""
    metric = order[0].first.metric
    compared = {id(one.a): one for one in analysis.comparisons(order, target)}
    shown = order[:MOST_ROWS]
    title, texts = settings(order)

    def median(field: str, text: Callable[[float | None], str]) -> list[Cell]:
        values = [group.median(attrgetter(field)) for group in shown]
        return [Cell(text(value), math.inf if value is None else value) for value in values]

    to_target = f"to {target_text(metric, target) if target is not None else 'target'}"
    columns = [
        ("engine", False, [Cell(group.first.engine) for group in shown]),
        (title, False, [Cell(text) for text in texts]),
        ("mode", False, [Cell(group.first.mode) for group in shown]),
        ("workers", True, [Cell(str(group.first.workers or "-"), group.first.workers) for group in shown]),
        (to_target, True, [_time(group, target) for group in shown]),
        ("against the first", True, [_ratio(compared.get(id(group))) for group in shown]),
        (metric, True, median("result", quality)),
        *((name, True, median(field, text)) for name, (field, text, _) in MEDIANS.items() if name != "test"),
        ("runs", True, [Cell(f"{len(group.good)}/{len(group.records)}", len(group.good)) for group in shown]),
        ("arithmetic", False, [_verdict(group) for group in shown]),
    ]
    used = [one for one in columns if one[0] == "engine" or any(cell.text not in ("-", "") for cell in one[2])]
    rows = [
        BoardRow(group.first.engine, style, bool(group.good), cells, _details(group, noise))
        for group, style, *cells in zip(shown, styles, *(cells for _, _, cells in used), strict=False)
    ]
    return Board([(name, figures) for name, figures, _ in used], rows, len(order) - len(shown))


def _time(group: SettingGroup, target: float | None) -> Cell:
    spread = group.spread(target) if target is not None else None
    if spread is None or not math.isfinite(spread.median):
        return Cell("-", math.inf)
    return Cell(seconds(spread.median), spread.median, span(spread.low, spread.high) if spread.n > 1 else "")


def _ratio(found: Comparison | None) -> Cell:
    """Return a setting's time as a multiple of the best one's, with the verdict if there are enough pairs for one."""
    if found is None or not found.ratio or not math.isfinite(found.ratio):
        return Cell("-", math.inf)
    has_interval = found.low is not None and found.high is not None and found.n > 1
    interval = f"{ratio_text(found.low)} to {ratio_text(found.high)}" if has_interval else ""
    verdict = "" if found.indicative else f"{found.verdict}: " if interval else found.verdict
    return Cell(f"{ratio_text(found.ratio)}×", found.ratio, verdict + interval)


def _verdict(group: SettingGroup) -> Cell:
    """Return the certificate of a setting with successful runs, otherwise its status."""
    text = str(group.good[0].equivalence.get("verdict") or "not checked") if group.good else group.first.status
    wrong = sum(record.status == "wrong-result" for record in group.records)
    return Cell(text, more=f"wrong in {wrong} of {len(group.records)}" if wrong and group.good else "")


def _details(group: SettingGroup, noise: Noise) -> list[tuple[str, str]]:
    record = (group.good or group.records)[0]
    limit = bottleneck(record)
    parameters = [
        f"{key.replace('_', ' ')} {value_text(value)}" for key, value in record.params.items() if value is not None
    ]
    seeds = [f"{one.seed} ({one.status})" if one.status != "ok" else str(one.seed) for one in group.records]
    details = {
        "parameters": ", ".join(parameters),
        "a node": node_size(record.cores, record.memory_gb),
        "seeds": ", ".join(seeds),
        "certificate": _certificate(record),
        "CPU by role": ", ".join(f"{role} {seconds(spent)}" for role, spent in record.cpu_s_by_role.items()),
        "memory by role": ", ".join(f"{role} {size(peak)}" for role, peak in record.peak_memory_bytes_by_role.items()),
        "bound": str(limit) if limit else "",
        "machine": _noise(group, noise),
        "speed": f"{record.samples_per_s:,.0f} samples/s" if record.samples_per_s else "",
        "counts": ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in record.counts.items()),
        "notes": "; ".join(record.notes.values()),
        "version": record.engine_version,
        "record": record.trial_id,
    }
    return [(name, value) for name, value in details.items() if value]


def _noise(group: SettingGroup, noise: Noise) -> str:
    """Return whether the machine was quiet during the runs."""
    reports = [noise[id(record)] for record in group.records if id(record) in noise]
    disturbed = [one for one in reports if one.verdict == "disturbed"]
    if disturbed:
        return f"disturbed in {len(disturbed)} of {len(reports)} runs: {'; '.join(disturbed[0].reasons)}"
    return reports[0].verdict if reports else ""


def _certificate(record: Record) -> str:
    found = record.equivalence
    if not found.get("verdict"):
        return ""
    distance, reason = found.get("max_rel_diff"), found.get("reason")
    distance = f" (distance {distance:.2g})" if distance is not None else ""
    return f"{found['verdict']}{distance}{f' ({reason})' if reason else ''}"


def fault_table(order: Sequence[SettingGroup]) -> Table:
    """Return the effects of faults by setting."""
    effects = fault_effects(order)
    columns = fault_columns(effects)
    rows = zip(*(column.cells for column in columns), strict=True)
    return Table(
        [(column.heading, column.right) for column in columns],
        [(effect.group.first.engine, list(map(str, cells))) for effect, cells in zip(effects, rows, strict=True)],
    )


def node_table(order: Sequence[SettingGroup]) -> Table:
    """Return the emulated nodes of the first run of every setting."""
    rows = [
        (group.first.engine, [group.name, *cells])
        for group in order
        for cells in node_rows(group.good[0] if group.good else group.first)
    ]
    return Table([(heading, False) for heading in ("setting", *NODE_HEADINGS)], rows)


def certificate_table(order: Sequence[SettingGroup]) -> Table:
    """Return the distance of every setting from the reference after 1 and 20 steps."""
    rows = []
    for group in order:
        found = (group.good or group.records)[0].equivalence
        if verdict := found.get("verdict"):
            steps = ", ".join(f"{distance:.2g} at step {step}" for step, distance in (found.get("steps") or {}).items())
            rows.append((group.first.engine, [group.name, str(verdict), steps, str(found.get("reason") or "")]))
    return Table([(heading, False) for heading in ("setting", "verdict", "distance", "reason")], rows)
