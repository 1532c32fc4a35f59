"""What a training costs in money: of the training, of the whole trial, and until a target is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from trainoff.analysis.figures import time_to
from trainoff.analysis.format import count, node_size
from trainoff.analysis.groups import SettingGroup
from trainoff.records import Record
from trainoff.study.machines import PriceBook

UNLIMITED = ": memory is charged, and they had no limit of it; set `memory_gb` in the study, or charge for cores alone"


@dataclass(frozen=True)
class Cost:
    """What a setting costs in US dollars, each the median of its runs; None where it is not known."""

    group: SettingGroup
    run: float | None  # the training
    trial: float | None  # from its first process to its last
    target: float | None = None
    to_target: float | None = None  # infinite if most of its runs never get there


def cost_of_trial(record: Record) -> float | None:
    """What the whole trial cost, from its first process to its last; None where no price or no time is known."""
    return record.usd(record.cold_s)


def cost_to(record: Record, target: float) -> float | None:
    """What the training cost until a target was reached; infinite if it never was, None where no price is known."""
    spent = time_to(target, record.metric).value(record)
    known = record.usd_per_hour is not None
    return math.inf if known and spent == math.inf else record.usd(spent)


def costs(groups: Sequence[SettingGroup], target: float | None = None) -> list[Cost]:
    """The settings that ended well and have a price, the cheapest first: to the target, or else to train."""
    found = [_cost(group, target) for group in groups if group.good]
    priced = [cost for cost in found if cost.run is not None]
    return sorted(priced, key=lambda cost: (_least(cost.to_target), _least(cost.run)))


def _least(value: float | None) -> float:
    return math.inf if value is None else value


def _cost(group: SettingGroup, target: float | None) -> Cost:
    run, trial = group.median(lambda record: record.usd(record.train_s)), group.median(cost_of_trial)
    if target is None:
        return Cost(group, run, trial)
    values = [found for record in group.records if (found := cost_to(record, target)) is not None]
    return Cost(group, run, trial, target, median(values) if values else None)


def priced(records: Sequence[Record], book: PriceBook) -> list[Record]:
    """The records with the prices of a book in the place of their own; without one where the book has none."""
    return [_priced(record, book) for record in records]


def _priced(record: Record, book: PriceBook) -> Record:
    made = replace(record, usd_per_hour=_hour(record, book))
    made.cost_usd = made.usd(made.train_s)
    return made


def _hour(record: Record, book: PriceBook) -> float | None:
    """What an hour of all nodes costs; unlike nodes are charged each by its own size."""
    listed = record.params.get("nodes")
    if isinstance(listed, list):
        each = [book.usd_per_hour(None, node["cores"], node.get("memory_gb")) for node in listed]
        known = [price for price in each if price is not None]
        return sum(known) if len(known) == len(each) else None
    machine, scale = record.params.get("machine"), record.params.get("scale") or 1.0
    one = book.usd_per_hour(machine, record.cores, record.memory_gb, scale)
    nameless = machine is None and not record.cores  # a document that says nothing of its machines
    return None if one is None or nameless or not record.workers else one * record.workers


def unpriced(records: Sequence[Record], book: PriceBook | None = None) -> str | None:
    """Which machines have no price, in one sentence, and why by this book; None where all of them have one."""
    missing = [record for record in records if record.usd_per_hour is None]
    if not missing:
        return None
    names = list(dict.fromkeys(_kind(record) for record in missing))
    told = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    by_memory = book is not None and book.usd_per_gb_hour is not None
    unlimited = by_memory and any(record.memory_gb is None and record.cores for record in missing)
    how_many = f"{len(missing)} of {count(len(records), 'trial')} {'has' if len(missing) == 1 else 'have'}"
    of_some = "what it cost" if len(missing) == 1 else "what they cost"
    of_what = "money" if len(missing) == len(records) else of_some
    return f"{how_many} no price ({told}), so nothing is said of {of_what}{UNLIMITED if unlimited else ''}."


def _kind(record: Record) -> str:
    """The machine of a record, or how large its nodes are."""
    size = node_size(record.cores, record.memory_gb)
    named = record.params.get("machine") or (f"nodes of {size}" if size else "unknown nodes")
    return str(named)
