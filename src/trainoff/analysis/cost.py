"""What a training costs in US dollars: the training, the whole trial, and the training until a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainoff.analysis.figures import time_to
from trainoff.analysis.format import count, node_size, some_names
from trainoff.analysis.groups import SettingGroup
from trainoff.analysis.statistics import median_of
from trainoff.records import Record
from trainoff.study.machines import PriceBook, price_of

UNLIMITED = (
    ": memory has a price, and these trials had no limit; set `memory_gb` in the study, or charge for cores only"
)


@dataclass(frozen=True)
class Cost:
    """The cost of a setting in US dollars, each figure the median of its runs; None if it is not known."""

    group: SettingGroup
    run: float | None  # the training
    trial: float | None  # from its first process to its last
    target: float | None = None
    to_target: float | None = None  # infinite if most of its runs never reach it


def cost_of_trial(record: Record) -> float | None:
    """Return the cost of the whole trial; None without a price or a time."""
    return record.usd(record.cold_s)


def cost_to(record: Record, target: float) -> float | None:
    """Return the cost of the training until a target; infinite if it was never reached, None without a price."""
    spent = time_to(target, record.metric).value(record)
    return math.inf if record.usd_per_hour is not None and spent == math.inf else record.usd(spent)


def costs(groups: Sequence[SettingGroup], target: float | None = None) -> list[Cost]:
    """Return the cost of settings that ended well and have a price, the cheapest to the target or to train first."""
    found = []
    for group in groups:
        if group.good:
            run, trial = group.median(lambda record: record.usd(record.train_s)), group.median(cost_of_trial)
            to_target = None if target is None else median_of(cost_to(record, target) for record in group.records)
            found.append(Cost(group, run, trial, target, to_target))
    known = [cost for cost in found if cost.run is not None]
    return sorted(known, key=lambda cost: [math.inf if each is None else each for each in (cost.to_target, cost.run)])


def priced(records: Sequence[Record], book: PriceBook) -> list[Record]:
    """Return the records with the prices of a price book instead of those on record."""
    found = [replace(record, usd_per_hour=_usd_per_hour(record, book)) for record in records]
    for record in found:
        record.cost_usd = record.usd(record.train_s)
    return found


def _usd_per_hour(record: Record, book: PriceBook) -> float | None:
    """Return the price of an hour of all nodes; nodes that differ are charged each by its size."""
    listed = record.params.get("nodes")
    if isinstance(listed, list):
        return price_of([book.usd_per_hour(None, node["cores"], node.get("memory_gb")) for node in listed])
    machine, scale = record.params.get("machine"), record.params.get("scale") or 1.0
    price = book.usd_per_hour(machine, record.cores, record.memory_gb, scale)
    unknown = machine is None and not record.cores  # a document that says nothing about its machines
    return None if price is None or unknown or not record.workers else price * record.workers


def unpriced(records: Sequence[Record], book: PriceBook | None = None) -> str | None:
    """Return a sentence that names the machines without a price, and why this book has none; None if all have one."""
    missing = [record for record in records if record.usd_per_hour is None]
    if not missing:
        return None
    names = some_names(_machine_name(record) for record in missing)
    by_memory = book is not None and book.usd_per_gb_hour is not None
    unlimited = by_memory and any(record.memory_gb is None and record.cores for record in missing)
    trials = f"{len(missing)} of {count(len(records), 'trial')} {'has' if len(missing) == 1 else 'have'}"
    whose = "" if len(missing) == len(records) else " for it" if len(missing) == 1 else " for them"
    return f"{trials} no price ({names}), so no cost is given{whose}{UNLIMITED * unlimited}."


def _machine_name(record: Record) -> str:
    size = node_size(record.cores, record.memory_gb)
    return str(record.params.get("machine") or (f"nodes of {size}" if size else "unknown nodes"))
