"""Group records by setting, and name each group by the keys in which it differs from the others."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from trainoff.analysis.figures import time_to
from trainoff.analysis.format import count, display_value, join_names, key_text
from trainoff.analysis.statistics import Interval, interval, median_of
from trainoff.records import Record

_FIELDS = ("kind", "workload", "engine", "mode", "workers", "cores", "memory_gb", "cluster")
_IN_COLUMNS = ("engine", "mode", "workers")  # these have columns of their own on every board
UNSTATED = "not stated"  # the mode of a published run if the document does not state it
NODE_SIZE = ("cores", "memory_gb")
MISSING = object()  # the value of a key that a group lacks and others have
LONGEST_NAME = 2  # keys; with more, names leave out what is usual


@dataclass(frozen=True)
class SettingGroup:
    """All repetitions of one setting; figures are medians over those that ended well, if any did, else over all."""

    label: dict[str, Any]  # how it differs from other groups, besides engine, mode and workers
    records: Sequence[Record]
    usual: dict[str, Any] = field(default_factory=dict)  # the commonest values among the groups of its engine

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def good(self) -> list[Record]:
        return [record for record in self.records if record.status == "ok"]

    @property
    def name(self) -> str:
        """The engine, its mode and workers unless it is single, and what else distinguishes the group."""
        first = self.first
        workers = f", {count(first.workers, 'worker')}" if first.workers else ""  # a document may not state them
        mode = "mode not stated" if first.mode == UNSTATED else first.mode
        parts = [first.engine if first.mode == "single" else f"{first.engine} ({mode}{workers})"]
        if "workload" in self.label:
            parts.append(f"on {first.workload}")
        if self.setting:
            parts.append(f"with {self.setting}")
        return " ".join(parts)

    @property
    def setting(self) -> str:
        """The keys and values that distinguish the group, without those that are usual for its engine."""
        usual = self.usual
        every = {**self.label, **{key: MISSING for key in usual if key not in self.label}}
        return _label_text({key: value for key, value in every.items() if key not in usual or value != usual[key]})

    def median(self, value: Callable[[Record], float | None]) -> float | None:
        """Return the median of a figure over the repetitions that have it."""
        return median_of(value(record) for record in self.good or self.records)

    def phases_s(self) -> dict[str, float]:
        """Return the median seconds of each phase."""
        phases: dict[str, list[float]] = {}
        for record in self.good or self.records:
            for name, seconds in record.phases_s.items():
                if seconds is not None:
                    phases.setdefault(name, []).append(seconds)
        return {name: statistics.median(values) for name, values in phases.items()}

    def time_to(self, target: float) -> float | None:
        """Return the median time to a target; None if most runs never reached it."""
        median = median_of(self.times_to(target))
        return median if median is not None and math.isfinite(median) else None

    def times_to(self, target: float) -> list[float]:
        """Return the times of the repetitions that had this target; infinite if one failed or never reached it."""
        value = time_to(target, self.first.metric).value
        return [found for record in self.records if (found := value(record)) is not None]

    def spread(self, target: float) -> Interval | None:
        """Return the median time to a target with its interval; None if no repetition had that target."""
        values = self.times_to(target)
        return interval(values) if values else None


def _label_text(values: dict[str, Any]) -> str:
    """Format keys and values, without the workload, which names mention elsewhere."""
    return ", ".join(
        f"no {key_text(key)}" if value is MISSING else f"{key_text(key)} {display_value(value)}"
        for key, value in values.items()
        if key != "workload"
    )


def newest(records: Iterable[Record]) -> list[Record]:
    """Return the newest attempt at each trial; one of a changed adapter or engine version replaces the older one."""
    latest: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: (record.started_at or "", record.attempt)):
        latest[as_key([record.study, record.seed, setting_of(record)])] = record
    return list(latest.values())


def groups(records: Iterable[Record]) -> list[SettingGroup]:
    """Group the newest attempts by everything but the seed."""
    found: dict[str, list[Record]] = {}
    for record in newest(records):
        found.setdefault(as_key(setting_of(record)), []).append(record)
    settings = [setting_of(members[0]) for members in found.values()]
    keys = [key for key in without_implied_sizes(varying_keys(settings), settings) if key not in _IN_COLUMNS]
    made = [
        SettingGroup({key: setting[key] for key in keys if key in setting}, members)
        for setting, members in zip(settings, found.values(), strict=True)
    ]
    if len(keys) <= LONGEST_NAME:
        return made
    usual = {engine: _usual(made, engine) for engine in {group.first.engine for group in made}}
    return [replace(group, usual=usual[group.first.engine]) for group in made]


def _usual(every: Sequence[SettingGroup], engine: str) -> dict[str, Any]:
    """Return the commonest value of each key among the groups of an engine, without keys for which there is a tie."""
    labels = [group.label for group in every if group.first.engine == engine]
    found = {
        key: _commonest([label.get(key, MISSING) for label in labels])
        for key in dict.fromkeys(chain.from_iterable(labels))
    }
    return {key: values[0] for key, values in found.items() if values}


def _commonest(values: Sequence[Any]) -> list[Any]:
    """Return the one value that is more common than every other; an empty list if there is none."""
    keys = [as_key(value) for value in values]
    (first, most), *others = Counter(keys).most_common(2)
    return [] if others and others[0][1] == most else [values[keys.index(first)]]


def usual_settings(found: Sequence[SettingGroup]) -> str | None:
    """Return a sentence with the values that names leave out because they are usual; None if they leave out none."""
    usual = {group.first.engine: group.usual for group in found if group.usual}
    texts = {engine: _label_text(each) for engine, each in usual.items()}
    if not any(texts.values()):
        return None
    if len(set(texts.values())) == 1:
        return f"Unless said otherwise: {next(iter(texts.values()))}."
    engines = {text: [engine for engine, other in texts.items() if other == text] for text in texts.values() if text}
    return f"Unless said otherwise: {'; '.join(f'{join_names(names)} with {text}' for text, names in engines.items())}."


def by_workload(found: Iterable[SettingGroup]) -> list[list[SettingGroup]]:
    """Return the groups of each workload, in the order in which the workloads first appear."""
    workloads: dict[str, list[SettingGroup]] = {}
    for group in found:
        workloads.setdefault(group.first.workload, []).append(group)
    return list(workloads.values())


def setting_of(record: Record) -> dict[str, Any]:
    """Return everything but the seed that decides what a trial does."""
    return {**{name: getattr(record, name) for name in _FIELDS}, **record.params, "settled": record.settled}


def as_key(value: Any) -> str:
    """Return JSON by which settings can be grouped and compared."""
    return json.dumps(value, sort_keys=True, default=str)


def varying_keys(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keys in which settings differ; a key that only some engines have does not distinguish engines.

    What differs only from workload to workload, such as the parts of their recipes, is implied by the workload's
    name. A value that an engine had no choice about (`settled`) is compared only within that engine.
    """
    keys = [key for key in dict.fromkeys(key for setting in settings for key in setting) if key != "settled"]
    return [key for key in keys if _differs(settings, key)]


def _differs(settings: Sequence[dict[str, Any]], key: str) -> bool:
    values: dict[Any, set[str]] = {}
    present: dict[str, set[bool]] = {}  # by engine and workload; some settings may lack the key, a fault for example
    for setting in settings:
        present.setdefault(as_key([setting["engine"], setting.get("workload")]), set()).add(key in setting)
        if key in setting:
            workload = None if key == "workload" else setting.get("workload")
            scope = (workload, setting["engine"] if key in setting.get("settled", ()) else None)
            values.setdefault(scope, set()).add(as_key(setting[key]))
    return any(len(found) > 1 for found in values.values()) or any(len(found) > 1 for found in present.values())


def without_implied_sizes(keys: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keys without the size of a node if the name of its machine implies it."""
    if "machine" not in keys:
        return list(keys)
    return [key for key in keys if key not in NODE_SIZE or not _implied_by_machine(key, settings)]


def _implied_by_machine(key: str, settings: Sequence[dict[str, Any]]) -> bool:
    """Whether all settings on one machine have one value of a key."""
    values: dict[Any, set[str]] = {}
    for setting in settings:
        values.setdefault(setting.get("machine"), set()).add(as_key(setting.get(key)))
    return all(len(found) == 1 for found in values.values())
