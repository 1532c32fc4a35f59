"""Groups: the repetitions of one setting taken together, and what tells settings apart."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from trainoff.analysis.figures import time_to
from trainoff.analysis.format import count, display_value, join_names, key_text
from trainoff.analysis.statistics import Interval, interval
from trainoff.records import Record

_FIELDS = ("kind", "workload", "engine", "mode", "workers", "cores", "memory_gb", "cluster")
_SHOWN = ("engine", "mode", "workers")  # these have columns of their own on every board
UNSTATED = "not stated"  # the mode of a published run of which the document does not say it
SIZE = ("cores", "memory_gb")  # of a node
LACKING = object()  # the value of a key that a group has not, and others have
MOST_NAMED = 2  # more than so many keys would make a name too long; then what is usual is left out of it


@dataclass(frozen=True)
class SettingGroup:
    """All repetitions of one setting; figures are medians over those that ended well, else over all."""

    label: dict[str, Any]  # what this group has and others have not, beyond engine, mode and workers
    records: Sequence[Record]
    usual: dict[str, Any] = field(default_factory=dict)  # what most groups of its engine have instead

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def good(self) -> list[Record]:
        return [record for record in self.records if record.status == "ok"]

    @property
    def name(self) -> str:
        """The engine, with its mode and workers where there is a choice, and what else sets the group apart."""
        first = self.first
        alone = first.mode == "single"
        workers = f", {count(first.workers, 'worker')}" if first.workers else ""  # a document may not say it
        mode = "mode not stated" if first.mode == UNSTATED else first.mode
        parts = [first.engine if alone else f"{first.engine} ({mode}{workers})"]
        if "workload" in self.label:
            parts.append(f"on {first.workload}")
        if self.setting:
            parts.append(f"with {self.setting}")
        return " ".join(parts)

    @property
    def setting(self) -> str:
        """What sets the group apart, in words; where that is much, only what is unlike most groups of its engine."""
        usual = self.usual
        every = {**self.label, **{key: LACKING for key in usual if key not in self.label}}
        return _worded({key: value for key, value in every.items() if key not in usual or value != usual[key]})

    def median(self, value: Callable[[Record], float | None]) -> float | None:
        """The median of a figure over the repetitions that have it."""
        values = [found for record in self.good or self.records if (found := value(record)) is not None]
        return statistics.median(values) if values else None

    def phases_s(self) -> dict[str, float]:
        """The median seconds in each phase that there was."""
        names = dict.fromkeys(name for record in self.good or self.records for name in record.phases_s)
        medians = {name: self.median(partial(_phase, name=name)) for name in names}
        return {name: value for name, value in medians.items() if value is not None}

    def time_to(self, target: float) -> float | None:
        """The median time to a target. Runs that never got there count as longer than any that did."""
        values = self.times_to(target)
        return statistics.median(values) if values and math.isfinite(statistics.median(values)) else None

    def times_to(self, target: float) -> list[float]:
        """The times of the repetitions that had this target; infinite where one failed or never got there."""
        value = time_to(target, self.first.metric).value
        return [found for record in self.records if (found := value(record)) is not None]

    def spread(self, target: float) -> Interval | None:
        """The median time to a target with what encloses it; None where no repetition had that target."""
        values = self.times_to(target)
        return interval(values) if values else None


def _worded(values: dict[str, Any]) -> str:
    """Keys and values in words; not the workload, which has a place of its own."""
    told = {key_text(key): value for key, value in values.items() if key != "workload"}
    return ", ".join(
        f"no {key}" if value is LACKING else f"{key} {display_value(value)}" for key, value in told.items()
    )


def _phase(record: Record, name: str) -> float | None:
    return record.phases_s.get(name)


def newest(records: Iterable[Record]) -> list[Record]:
    """The newest attempt at each trial; one of a changed adapter or engine version replaces the older one's."""
    latest: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: (record.started_at or "", record.attempt)):
        latest[json.dumps([record.study, record.seed, setting_of(record)], sort_keys=True, default=str)] = record
    return list(latest.values())


def groups(records: Iterable[Record]) -> list[SettingGroup]:
    """The newest attempts, grouped by everything but the seed."""
    found: dict[str, list[Record]] = {}
    for record in newest(records):
        found.setdefault(json.dumps(setting_of(record), sort_keys=True, default=str), []).append(record)
    settings = [setting_of(members[0]) for members in found.values()]
    keys = [key for key in without_implied_sizes(varying_keys(settings), settings) if key not in _SHOWN]
    made = [SettingGroup(_label(setting_of(members[0]), keys), members) for members in found.values()]
    if len(keys) <= MOST_NAMED:
        return made
    usual = {engine: _usual(made, engine) for engine in dict.fromkeys(group.first.engine for group in made)}
    return [replace(group, usual=usual[group.first.engine]) for group in made]


def _usual(every: Sequence[SettingGroup], engine: str) -> dict[str, Any]:
    """The commonest value of each key among the groups of an engine; none of a key whose values are equally common."""
    own = [group.label for group in every if group.first.engine == engine]
    found = {
        key: _commonest([each.get(key, LACKING) for each in own]) for key in dict.fromkeys(chain.from_iterable(own))
    }
    return {key: values[0] for key, values in found.items() if values}


def _commonest(values: Sequence[Any]) -> list[Any]:
    """The one value that is more common than every other; empty if there is none."""
    told_apart = [json.dumps(value, sort_keys=True, default=str) for value in values]
    (first, most), *others = Counter(told_apart).most_common(2)
    return [] if others and others[0][1] == most else [values[told_apart.index(first)]]


def usual_settings(found: Sequence[SettingGroup]) -> str | None:
    """What names leave out because most settings have it, in one sentence; None where names say everything."""
    usual = {group.first.engine: group.usual for group in found if group.usual}
    told = {engine: _worded(each) for engine, each in usual.items()}
    if not any(told.values()):
        return None
    if len(set(told.values())) == 1:
        return f"Unless said otherwise: {next(iter(told.values()))}."
    alike = {each: [engine for engine, own in told.items() if own == each] for each in told.values() if each}
    return f"Unless said otherwise: {'; '.join(f'{join_names(names)} with {each}' for each, names in alike.items())}."


def by_workload(found: Iterable[SettingGroup]) -> list[list[SettingGroup]]:
    """The groups of each workload, in the order in which the workloads first appear."""
    own: dict[str, list[SettingGroup]] = {}
    for group in found:
        own.setdefault(group.first.workload, []).append(group)
    return list(own.values())


def setting_of(record: Record) -> dict[str, Any]:
    """Everything but the seed that decides what a trial does."""
    return {**{name: getattr(record, name) for name in _FIELDS}, **record.params, "settled": record.settled}


def varying_keys(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The keys in which settings differ; a key that only some engines have does not tell engines apart.

    What differs only from workload to workload, as the parts of their recipes do, is told by the workload's name. What
    an engine had no choice about (`settled`) is compared only with its own.
    """
    keys = [key for key in dict.fromkeys(key for setting in settings for key in setting) if key != "settled"]
    return [key for key in keys if _differs(settings, key)]


def _differs(settings: Sequence[dict[str, Any]], key: str) -> bool:
    values: dict[Any, set[str]] = {}
    said: dict[str, set[bool]] = {}  # whether the key is said at all, by engine: a fault, for example
    for setting in settings:
        said.setdefault(json.dumps([setting["engine"], setting.get("workload")]), set()).add(key in setting)
        if key in setting:
            workload = None if key == "workload" else setting.get("workload")
            home = (workload, setting["engine"] if key in setting.get("settled", ()) else None)
            values.setdefault(home, set()).add(json.dumps(setting[key]))
    return any(len(found) > 1 for found in values.values()) or any(len(found) > 1 for found in said.values())


def without_implied_sizes(keys: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[str]:
    """These keys without the size of a node where the name of its machine tells it."""
    if "machine" not in keys:
        return list(keys)
    return [key for key in keys if key not in SIZE or not _follows(key, settings)]


def _follows(key: str, settings: Sequence[dict[str, Any]]) -> bool:
    """Whether all settings on one machine have one value of a key."""
    values: dict[Any, set[str]] = {}
    for setting in settings:
        values.setdefault(setting.get("machine"), set()).add(json.dumps(setting.get(key)))
    return all(len(found) == 1 for found in values.values())


def _label(setting: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: setting[key] for key in keys if key in setting}
