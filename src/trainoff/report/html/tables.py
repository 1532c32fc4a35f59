"""The page's tables: the leader board with figures that can be sorted, and the certificates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainoff.analysis import Comparison, NoiseReport, SettingGroup, bottleneck, comparisons, struck
from trainoff.analysis.bottleneck import node_rows
from trainoff.analysis.format import mark, node_size, quality, seconds, size, span, times, told
from trainoff.records import Record
from trainoff.report.html.style import Look
from trainoff.report.tables import columns, heading, setting

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
    goal = f"to {mark(metric, target)}" if target is not None else "to target"
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
    spread = f"{times(found.low)} to {times(found.high)}" if sure else ""
    verdict = "" if found.indicative else f"{found.verdict}: " if spread else found.verdict
    return Cell(f"{times(found.ratio)}×", found.ratio, verdict + spread)


def _outcome(group: SettingGroup) -> Cell:
    """The certificate of a setting that ended well, else how it ended."""
    text = str(group.good[0].equivalence.get("verdict") or "not checked") if group.good else group.first.status
    wrong = sum(record.status == "wrong-result" for record in group.records)
    return Cell(text, text, f"wrong in {wrong} of {len(group.records)}" if wrong and group.good else "")


def _details(group: SettingGroup, noise: Noise) -> list[tuple[str, str]]:
    """What there is to know about a setting beyond its line."""
    record = (group.good or group.records)[0]
    parameters = ", ".join(
        f"{key.replace('_', ' ')} {told(value)}" for key, value in record.params.items() if value is not None
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
    if not (found := struck(order)):
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
