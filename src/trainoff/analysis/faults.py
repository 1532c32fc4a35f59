"""What faults did: how soon an engine noticed and recovered, and how it compares with the run without the fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainoff.analysis.format import fault_text
from trainoff.analysis.groups import SettingGroup, as_key, setting_of
from trainoff.analysis.statistics import median_of
from trainoff.records import METRICS, Record
from trainoff.study.keys import FAULT_FIELDS


@dataclass(frozen=True)
class FaultEffect:
    """The effect of a fault on one setting; figures are medians over the repetitions that have them."""

    group: SettingGroup
    detected_s: float | None  # None: never noticed
    recovered_s: float | None
    longest_gap_s: float | None
    samples_redone: float | None
    slowdown: float | None  # the training time as a multiple of that of the same seed without a fault
    quality_lost: float | None  # how much worse its result is by the workload's metric; negative: better
    states: Mapping[str, int]  # how often each final state occurred

    @property
    def name(self) -> str:
        return self.without_fault.name

    @property
    def without_fault(self) -> SettingGroup:
        """The group without the fault in its label, for its name and its setting."""
        label = {key: value for key, value in self.group.label.items() if key != "fault"}
        return replace(self.group, label=label)

    @property
    def action(self) -> str:
        return str(self.group.first.params["fault"]["action"])

    @property
    def fault(self) -> str:
        return fault_text(self.group.first.params["fault"])

    @property
    def state(self) -> str:
        """The final state; if repetitions differ, how often each occurred."""
        if len(self.states) == 1:
            return next(iter(self.states))
        return ", ".join(f"{state} {count}" for state, count in self.states.items())


def fault_effects(groups: Sequence[SettingGroup]) -> list[FaultEffect]:
    """Return the effect on every setting in which a fault was injected, by name, then by the kind of fault."""
    baselines = {_key(record): record for group in groups for record in group.good if not record.params.get("fault")}
    found = [_effect(group, baselines) for group in groups if any(record.fault for record in group.records)]
    return sorted(found, key=lambda effect: (effect.name, list(FAULT_FIELDS).index(effect.action), effect.fault))


def without_faults(groups: Sequence[SettingGroup]) -> list[SettingGroup]:
    """Return the settings without a fault, which are the ones to be ranked; all of them if every one has a fault."""
    return [group for group in groups if not group.first.params.get("fault")] or list(groups)


def _effect(group: SettingGroup, baselines: Mapping[str, Record]) -> FaultEffect:
    records = [record for record in group.records if record.fault]
    good = [record for record in records if record.status == "ok"]
    pairs = [(record, baselines[key]) for record in good if (key := _key(record)) in baselines]
    return FaultEffect(
        group,
        median_of(record.fault.get("detected_s") for record in records),
        median_of(record.fault.get("recovered_s") for record in records),
        median_of(record.fault.get("longest_gap_s") for record in records),
        median_of(record.fault.get("samples_redone") for record in records),
        median_of(hit.train_s / base.train_s for hit, base in pairs if hit.train_s and base.train_s),
        median_of(_quality_lost(hit, base) for hit, base in pairs),
        Counter(record.fault["state"] for record in records),
    )


def _key(record: Record) -> str:
    setting = {key: value for key, value in setting_of(record).items() if key != "fault"}
    return as_key([record.study, record.seed, setting])


def _quality_lost(hit: Record, base: Record) -> float | None:
    """Return how much worse one result is than another, by their metric."""
    if hit.result is None or base.result is None:
        return None
    badness = METRICS[hit.metric].badness
    return badness(hit.result) - badness(base.result)
