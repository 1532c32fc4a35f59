"""A price book: what an hour of a machine, of a core or of a GB costs, as of a date. One ships; users bring theirs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.study.machines import catalogue
from trainoff.study.suggestions import clean, quote, suggest

RATES = ("usd_per_core_hour", "usd_per_gb_hour")
_KEYS = ("date", "source", *RATES, "machine")
_OF_MACHINE = ("cores", "memory_gb", "usd_per_hour", "bandwidth_mbit")
_NEEDED = ("cores", "memory_gb", "usd_per_hour")
_LARGEST = 1024 * 1024
_MOST = 1e15  # that a number may be
_FORM = '[machine] "m4.xlarge" = { cores = 4, memory_gb = 16, usd_per_hour = 0.2 }'


@dataclass(frozen=True)
class Machine:
    """A type of machine: its size, and what an hour of it costs."""

    cores: float
    memory_gb: float
    usd_per_hour: float


@dataclass(frozen=True)
class PriceBook:
    """Prices in US dollars as of a date: of machine types by name, and of cores and memory by themselves."""

    date: str = ""
    source: str = ""
    machines: Mapping[str, Machine] = field(default_factory=dict)
    usd_per_core_hour: float | None = None
    usd_per_gb_hour: float | None = None

    def usd_per_hour(
        self, machine: str | None, cores: float, memory_gb: float | None, scale: float = 1.0
    ) -> float | None:
        """What an hour of one node costs: by its machine's name, of which it may be a part, else by its size.

        None where the book does not know: neither the name nor a rate is in it, or it charges for memory and the node
        has no limit of it.
        """
        if machine is not None and machine in self.machines:
            return self.machines[machine].usd_per_hour * scale
        if self.usd_per_core_hour is None and self.usd_per_gb_hour is None:
            return None
        if self.usd_per_gb_hour is not None and memory_gb is None:
            return None
        return cores * (self.usd_per_core_hour or 0.0) + (memory_gb or 0.0) * (self.usd_per_gb_hour or 0.0)


@cache
def shipped_prices() -> PriceBook:
    """The book that ships: the eleven machine types of 2017, with the prices that their study printed."""
    return _book(catalogue(), "machines.toml")


def read_prices(path: Path) -> PriceBook:
    """A user's own book; what is wrong with it is one sentence."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise TrainoffError(f"{path}: there is no such file; a price book is a TOML file with {_FORM}") from None
    except IsADirectoryError:
        raise TrainoffError(f"{path}: this is a folder; name the price book in it") from None
    except OSError as error:
        raise TrainoffError(f"{path}: the file cannot be read ({error.strerror})") from None
    if len(raw) > _LARGEST:
        raise TrainoffError(f"{path}: the file is larger than {_LARGEST // 1024} KiB; that cannot be a price book")
    try:
        return _book(tomllib.loads(raw.decode("utf-8-sig")), str(path))
    except UnicodeDecodeError:
        raise TrainoffError(f"{path}: the file is not UTF-8 text; save it as UTF-8") from None
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise TrainoffError(f"{path}: this is not TOML: {clean(str(error), 200)}") from None


def _book(tables: Mapping[str, Any], label: str) -> PriceBook:
    for key in tables:
        if key not in _KEYS:
            raise TrainoffError(
                f"{label}: {quote(key)} is not a key of a price book; {suggest(key, _KEYS, 'the keys are')}"
            )
    machines = tables.get("machine", {})
    if not isinstance(machines, dict):
        raise TrainoffError(f"{label}: `machine` must be a table of machine types, as in {_FORM}")
    core, memory = (_price(tables[key], f"{label}: `{key}`") if key in tables else None for key in RATES)
    if not machines and core is None and memory is None:
        raise TrainoffError(f"{label}: there is no price in it; write {_FORM}, or `usd_per_core_hour = 0.05`")
    date, source = (_text(tables.get(key, ""), f"{label}: `{key}`") for key in ("date", "source"))
    return PriceBook(
        date, source, {name: _machine(name, facts, label) for name, facts in machines.items()}, core, memory
    )


def _machine(name: str, facts: Any, label: str) -> Machine:
    where = f"{label}: machine {quote(name)}"
    if not isinstance(facts, dict):
        raise TrainoffError(f"{where} must be a table, as in {_FORM}")
    for key in facts:
        if key not in _OF_MACHINE:
            raise TrainoffError(f"{where}: {quote(key)} is not known; {suggest(key, _OF_MACHINE, 'the keys are')}")
    for key in _NEEDED:
        if key not in facts:
            raise TrainoffError(f"{where} lacks `{key}`; write it as in {_FORM}")
    return Machine(**{key: _price(facts[key], f"{where}: `{key}`", free=key == "usd_per_hour") for key in _NEEDED})


def _price(value: Any, where: str, free: bool = True) -> float:
    """A number that a price or a size can be; only a price may be nothing."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
    if not number or (not free and value == 0):
        least = "at least 0" if free else "above 0"
        raise TrainoffError(f"{where} is {quote(str(value))}; expected a number, {least}")
    return float(value)


def _text(value: Any, where: str) -> str:
    """A date may stand there without quotes."""
    if isinstance(value, dict | list):
        raise TrainoffError(f"{where} must be a text")
    return str(value)
