"""Whether the machine was quiet during a trial, and what disturbed it, with the figures that show it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trainoff.analysis.format import count, percent
from trainoff.analysis.groups import as_key, setting_of
from trainoff.records import BY_HAND, Record

STEAL = 0.1  # cores; the steal of unnoticed neighbours is less than half of that
OTHERS = 0.25  # cores; runner, sampler and an idle system take about a tenth
PRESSURE = {"cpu": 0.2, "memory": 0.05, "io": 0.1}  # shares of the time, beyond what the setting always has
WAITED_FOR = {"cpu": "a CPU", "memory": "memory", "io": "storage"}
SLOWER = 0.9  # of the usual speed of the control kernel
SEVERAL = 3  # figures from which a median is usual


@dataclass(frozen=True)
class NoiseReport:
    """How quiet the machine was: `quiet`, `disturbed` for these reasons, or `unknown`."""

    verdict: str
    reasons: list[str]


Medians = dict[str, float]  # what is usual, by place or by setting


def noise_reports(records: Sequence[Record]) -> list[NoiseReport]:
    """Return how quiet the machine was during each trial, compared with all the others."""
    speeds: dict[str, list[float]] = {}
    waits: dict[str, list[float]] = {}
    for record in records:
        speeds.setdefault(_place(record), []).extend(_speeds(record).values())
        if (waited := record.noise.get("cpu_pressure")) is not None:
            waits.setdefault(as_key(setting_of(record)), []).append(waited)
    usual_speeds, usual_waits = _medians(speeds), _medians(waits)
    return [_report(record, usual_speeds, usual_waits) for record in records]


def disturbances(records: Sequence[Record]) -> list[str]:
    """Return a sentence with the number of disturbed trials and an example; empty if there is none."""
    reports = zip(records, noise_reports(records), strict=True)
    found = [(record, report) for record, report in reports if report.verdict == "disturbed"]
    if not found:
        return []
    record, report = found[0]
    were = f"{len(found)} of {count(len(records), 'trial')} {'was' if len(found) == 1 else 'were'} disturbed"
    return [f"{were}, such as {record.engine} with seed {record.seed}: {report.reasons[0]}."]


def _medians(found: dict[str, list[float]]) -> Medians:
    return {name: statistics.median(values) for name, values in found.items() if len(values) >= SEVERAL}


def _place(record: Record) -> str:
    return as_key([record.study, record.environment.get("host")])


def _speeds(record: Record) -> dict[str, float]:
    """Return the speed of the control kernel before and after the trial, as far as it was measured."""
    found = {when: record.noise.get(f"control_{when}") for when in ("before", "after")}
    return {when: speed for when, speed in found.items() if speed}


def _report(record: Record, speeds: Medians, waits: Medians) -> NoiseReport:
    changes = [name.removeprefix(BY_HAND) for name in record.notes if name.startswith(BY_HAND)]
    reasons = [f"its nodes were changed by hand ({', '.join(changes)})"] if changes else []
    steal = record.noise.get("steal_cores") or 0.0
    others = (record.noise.get("other_cores") or 0.0) - steal  # cores that other processes of this machine kept busy
    reasons += [f"the hypervisor gave {steal:.2g} cores to other machines"] if steal >= STEAL else []
    reasons += [f"other processes kept {others:.2g} cores busy"] if others >= OTHERS else []
    reasons += [*_waited(record, waits), *_slowed(record, speeds)]
    if reasons:
        return NoiseReport("disturbed", reasons)
    return NoiseReport("quiet" if "other_cores" in record.noise else "unknown", [])


def _waited(record: Record, usual: Medians) -> list[str]:
    """Return the pressures that were too high; workers share CPUs, so what a setting always waits for them is free."""
    single = record.mode == "single"
    wait = usual.get(as_key(setting_of(record)), 0.0 if single else 1.0)
    wait = min(wait, PRESSURE["cpu"]) if single else wait
    reasons = []
    for what, limit in PRESSURE.items():
        share = record.noise.get(f"{what}_pressure") or 0.0
        if share >= limit + (wait if what == "cpu" else 0.0):
            reasons.append(f"something waited for {WAITED_FOR[what]} in {percent(round(share, 2))} of the time")
    return reasons


def _slowed(record: Record, usual: Medians) -> list[str]:
    """Return when the control kernel was slower than usual in this study, or than at the other end of the trial."""
    speeds = _speeds(record)
    normal = usual.get(_place(record)) or max(speeds.values(), default=0.0)
    return [
        f"the control kernel {when} it ran at {percent(round(speed / normal, 2))} of its usual speed"
        for when, speed in speeds.items()
        if speed < SLOWER * normal
    ]
