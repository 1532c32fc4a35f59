"""Was the machine quiet during a trial? What disturbed it, with the figure that says so."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trainoff.analysis.format import count, percent
from trainoff.analysis.groups import setting_of
from trainoff.records import BY_HAND, Record

STEAL = 0.1  # cores; neighbours that one does not notice take less than half of that
OTHERS = 0.25  # cores; runner, sampler and an idle system take about a tenth
PRESSURE = {"cpu": 0.2, "memory": 0.05, "io": 0.1}  # shares of the time, beyond what the setting always has
WAITED_FOR = {"cpu": "a CPU", "memory": "memory", "io": "storage"}
SLOWER = 0.9  # of the usual speed of the control kernel
SEVERAL = 3  # figures that make something usual


@dataclass(frozen=True)
class NoiseReport:
    """How quiet the machine was: `quiet`, `disturbed` for these reasons, or `unknown`."""

    verdict: str
    reasons: list[str]


@dataclass(frozen=True)
class Baseline:
    """What is usual in a study: the speed of the control kernel, and how long a setting waits for CPUs by itself."""

    speeds: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)


def noise_report(record: Record, others: Iterable[Record] = ()) -> NoiseReport:
    """How quiet the machine was during a trial, compared with `others` of its study where that helps."""
    return _judged(record, _usual([record, *(other for other in others if other is not record)]))


def noise_reports(records: Sequence[Record]) -> list[NoiseReport]:
    """The same of every record, each compared with all the others."""
    usual = _usual(records)
    return [_judged(record, usual) for record in records]


def disturbances(records: Sequence[Record]) -> list[str]:
    """How many trials were disturbed, with an example; nothing where none was."""
    judged = zip(records, noise_reports(records), strict=True)
    found = [(record, one) for record, one in judged if one.verdict == "disturbed"]
    if not found:
        return []
    record, one = found[0]
    were = f"{len(found)} of {count(len(records), 'trial')} {'was' if len(found) == 1 else 'were'} disturbed"
    return [f"{were}, such as {record.engine} with seed {record.seed}: {one.reasons[0]}."]


def _usual(records: Iterable[Record]) -> Baseline:
    speeds: dict[str, list[float]] = {}
    waits: dict[str, list[float]] = {}
    for record in records:
        speeds.setdefault(_place(record), []).extend(_speeds(record).values())
        if (waited := record.noise.get("cpu_pressure")) is not None:
            waits.setdefault(_alike(record), []).append(waited)
    return Baseline(_medians(speeds), _medians(waits))


def _medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in found.items() if len(values) >= SEVERAL}


def _place(record: Record) -> str:
    return json.dumps([record.study, record.environment.get("host")])


def _alike(record: Record) -> str:
    return json.dumps(setting_of(record), sort_keys=True, default=str)


def _speeds(record: Record) -> dict[str, float]:
    """The speed of the control kernel before and after the trial, where it was measured."""
    found = {when: record.noise.get(f"control_{when}") for when in ("before", "after")}
    return {when: speed for when, speed in found.items() if speed}


def _by_hand(record: Record) -> list[str]:
    """What somebody did to its nodes."""
    done = [name.removeprefix(BY_HAND) for name in record.notes if name.startswith(BY_HAND)]
    return [f"somebody's hand was on its nodes ({', '.join(done)})"] if done else []


def _judged(record: Record, usual: Baseline) -> NoiseReport:
    reasons = [*_by_hand(record), *_taken(record), *_waited(record, usual), *_slowed(record, usual)]
    if reasons:
        return NoiseReport("disturbed", reasons)
    return NoiseReport("quiet" if "other_cores" in record.noise else "unknown", [])


def _taken(record: Record) -> list[str]:
    """CPU time that went to others: on other machines of the same host, and on this one."""
    steal = record.noise.get("steal_cores") or 0.0
    others = (record.noise.get("other_cores") or 0.0) - steal
    said = [f"the hypervisor gave {steal:.2g} cores to other machines"] if steal >= STEAL else []
    return said + ([f"other processes kept {others:.2g} cores busy"] if others >= OTHERS else [])


def _waited(record: Record, usual: Baseline) -> list[str]:
    """Pressure; of CPUs only what is beyond the setting's own, as workers that share CPUs wait for each other."""
    alone = record.mode == "single"
    own = usual.waits.get(_alike(record), 0.0 if alone else 1.0)
    own = min(own, PRESSURE["cpu"]) if alone else own
    said = []
    for what, most in PRESSURE.items():
        share = record.noise.get(f"{what}_pressure") or 0.0
        if share >= most + (own if what == "cpu" else 0.0):
            said.append(f"something waited for {WAITED_FOR[what]} in {percent(round(share, 2))} of the time")
    return said


def _slowed(record: Record, usual: Baseline) -> list[str]:
    """The control kernel, slower than it usually is in this study; else slower at one end of the trial."""
    speeds = _speeds(record)
    normal = usual.speeds.get(_place(record)) or max(speeds.values(), default=0.0)
    return [
        f"the control kernel {when} it ran at {percent(round(speed / normal, 2))} of its usual speed"
        for when, speed in speeds.items()
        if speed < SLOWER * normal
    ]
