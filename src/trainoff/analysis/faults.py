"""What faults did: how soon each engine noticed, when it was back, and how it fared beside the run left alone."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trainoff.analysis.format import fault_text
from trainoff.analysis.groups import SettingGroup, setting_of
from trainoff.records import METRICS, Record
from trainoff.study.keys import FIELDS

Alone = Mapping[str, Record]  # the runs that were left alone, by setting and seed


@dataclass(frozen=True)
class FaultEffect:
    """A setting that a fault was done to; figures are medians over the repetitions that have them."""

    group: SettingGroup
    detected_s: float | None  # None: never noticed
    recovered_s: float | None
    longest_gap_s: float | None
    samples_redone: float | None
    slowdown: float | None  # how many times as long its training took as that of the same seed without a fault
    quality_lost: float | None  # how much worse its result is by the workload's metric; negative: better
    states: Mapping[str, int]  # how often each final state occurred

    @property
    def name(self) -> str:
        """The setting without its fault."""
        return self.without_fault.name

    @property
    def without_fault(self) -> SettingGroup:
        """The group as if there were no fault, for its name and its setting."""
        label = {key: value for key, value in self.group.label.items() if key != "fault"}
        return replace(self.group, label=label)

    @property
    def action(self) -> str:
        return str(self.group.first.params["fault"]["action"])

    @property
    def fault(self) -> str:
        """What was done, in words."""
        return fault_text(self.group.first.params["fault"])

    @property
    def state(self) -> str:
        """The final state; where repetitions differ, how often each."""
        if len(self.states) == 1:
            return next(iter(self.states))
        return ", ".join(f"{state} {count}" for state, count in self.states.items())


def fault_effects(groups: Sequence[SettingGroup]) -> list[FaultEffect]:
    """Every setting with a fault that was run, engine by engine, the faults in one order."""
    alone = {_key(record): record for group in groups for record in group.good if not record.params.get("fault")}
    found = [_struck(group, alone) for group in groups if any(record.fault for record in group.records)]
    return sorted(found, key=lambda one: (one.name, list(FIELDS).index(one.action), one.fault))


def without_faults(groups: Sequence[SettingGroup]) -> list[SettingGroup]:
    """The settings without a fault, among which engines compete; all of them if there are no others."""
    return [group for group in groups if not group.first.params.get("fault")] or list(groups)


def _struck(group: SettingGroup, alone: Alone) -> FaultEffect:
    records = [record for record in group.records if record.fault]
    pairs = [(record, alone[_key(record)]) for record in records if record.status == "ok" and _key(record) in alone]
    told = partial(_median_of, records)
    return FaultEffect(
        group,
        told("detected_s"),
        told("recovered_s"),
        told("longest_gap_s"),
        told("samples_redone"),
        _median(hit.train_s / base.train_s for hit, base in pairs if hit.train_s and base.train_s),
        _median(lost for hit, base in pairs if (lost := _worse(hit, base)) is not None),
        Counter(record.fault["state"] for record in records),
    )


def _key(record: Record) -> str:
    setting = {key: value for key, value in setting_of(record).items() if key != "fault"}
    return json.dumps([record.study, record.seed, setting], sort_keys=True, default=str)


def _median_of(records: Iterable[Record], name: str) -> float | None:
    return _median(value for record in records if (value := record.fault.get(name)) is not None)


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _worse(hit: Record, base: Record) -> float | None:
    """How much worse one result is than another, by their metric."""
    if hit.result is None or base.result is None:
        return None
    badness = METRICS[hit.metric].badness
    return badness(hit.result) - badness(base.result)
