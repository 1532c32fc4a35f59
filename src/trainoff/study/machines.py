"""Machine types, the nodes of an emulated cluster, and price books."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.errors import TrainoffError
from trainoff.study.keys import MACHINE, StudySchema, only, read_table, table
from trainoff.study.source import Source, read_bytes
from trainoff.study.suggestions import clean, quote, suggest

if TYPE_CHECKING:
    from trainoff.study.study import Trial

GIB = 2**30
LINK = ("bandwidth_mbit", "latency_ms")
LAB_KEYS = ("nodes", "first", *LINK, "machine", "scale", "memory_scale")  # keys that need kind = "lab"
_DIGITS = 6
Machines = Mapping[str, Mapping[str, Any]]  # sizes by name


@dataclass(frozen=True)
class NodeSpec:
    """The cores, memory and link of one node."""

    cores: float
    memory_gb: float | None = None
    bandwidth_mbit: float | None = None
    latency_ms: float | None = None

    @property
    def memory_bytes(self) -> int | None:
        return round(self.memory_gb * GIB) if self.memory_gb else None


def nodes_of(trial: Trial) -> list[NodeSpec]:
    """Return the nodes of a trial, one for each worker; all alike unless they are listed."""
    alike = {"cores": trial.cores, "memory_gb": trial.memory_gb, **{key: trial.params.get(key) for key in LINK}}
    listed = trial.params.get("nodes")
    nodes: list[Mapping[str, Any]] = listed if isinstance(listed, list) else [{}] * trial.workers
    return [NodeSpec(**{**alike, **node}) for node in nodes]


def settle_nodes(values: dict[str, Any], machines: Machines, given: Mapping[str, Any]) -> None:
    """Resolve the sizes and prices of a lab's nodes; for other clusters remove the keys of a lab.

    A machine's name stands for its cores and memory, times the scales. Values of the study for all nodes (`given`)
    override it, and those of a single node override both. `usd_per_hour` becomes the list of the nodes' prices.
    """
    if values["kind"] != "lab":
        for key in LAB_KEYS:
            values.pop(key, None)
        return
    nodes, first = values.get("nodes") or values["workers"], values.pop("first", None)
    alike = _sized(values.get("machine"), machines, values)
    values |= {key: size for key, size in alike.items() if key not in given}
    if first and not isinstance(nodes, list):
        nodes = [first, *[{}] * (nodes - 1)]
    if isinstance(nodes, list):
        names = [node.get("machine") or values.get("machine") for node in nodes]
        values["usd_per_hour"] = [_priced(name, machines, values) for name in names]
        common = {key: values[key] for key in ("cores", "memory_gb")}
        values["nodes"] = nodes = [{**common, **_node_size(node, machines, values)} for node in nodes]
        values["cores"] = max(node["cores"] for node in nodes)
        values["memory_gb"] = min((node["memory_gb"] for node in nodes if node["memory_gb"]), default=None)
    else:
        values["usd_per_hour"] = [_priced(values.get("machine"), machines, values)] * nodes
        values.pop("nodes", None)
    values["workers"] = len(nodes) if isinstance(nodes, list) else nodes
    if values.get("machine") is None:
        for key in ("machine", "scale", "memory_scale"):
            values.pop(key, None)
    for key in LINK:
        if values.get(key) is None:
            values.pop(key, None)


def _node_size(node: Mapping[str, Any], machines: Machines, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size of a node in a list, by its machine and its other keys."""
    given = {key: size for key, size in node.items() if size is not None}
    return {**_sized(given.pop("machine", None), machines, values), **given}


def _sized(name: str | None, machines: Machines, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scaled size of a machine; nothing if none is named."""
    if name is None:
        return {}
    facts, scale = machines[name], values["scale"]
    memory = scale if values["memory_scale"] is None else values["memory_scale"]
    sized = {"cores": round(facts["cores"] * scale, _DIGITS), "memory_gb": round(facts["memory_gb"] * memory, _DIGITS)}
    return {**sized, **({"bandwidth_mbit": facts["bandwidth_mbit"]} if "bandwidth_mbit" in facts else {})}


def _priced(name: str | None, machines: Machines, values: Mapping[str, Any]) -> float | None:
    """Return the price of a node per hour, in proportion to its part of the machine; None if it is not known."""
    price = machines[name].get("usd_per_hour") if name is not None else None
    return None if price is None else price * values["scale"]


def price_of(nodes: Sequence[float | None]) -> float | None:
    """Return the price of all nodes per hour; None if there are none, or one has no price."""
    known = [price for price in nodes if price is not None]
    return sum(known) if known and len(known) == len(nodes) else None


@cache
def shipped() -> Machines:
    """Return the machines of the shipped catalogue."""
    found: Machines = catalogue()["machine"]
    return found


@cache
def catalogue() -> Mapping[str, Any]:
    """Return the shipped catalogue: machines, and date and source of their prices."""
    return tomllib.loads(resources.files("trainoff.study").joinpath("machines.toml").read_text())


def read_machines(source: Source, schema: StudySchema) -> Machines:
    """Return the shipped machines and those of the study."""
    added = {name: read_table(source, schema, only(MACHINE), "machine", name) for name in table(source, "machine")}
    for name, facts in added.items():
        for key in ("cores", "memory_gb"):
            if key not in facts:
                raise source.error_at("machine", name)(f"machine `{name}` lacks `{key}`; write it in [machine.{name}]")
    return {**shipped(), **added}


RATES = ("usd_per_core_hour", "usd_per_gb_hour")
_KEYS = ("date", "source", *RATES, "machine")
_OF_MACHINE = ("cores", "memory_gb", "usd_per_hour", "bandwidth_mbit")
_NEEDED = ("cores", "memory_gb", "usd_per_hour")
_MOST = 1e15  # the largest number
_FORM = '[machine] "m4.xlarge" = { cores = 4, memory_gb = 16, usd_per_hour = 0.2 }'


@dataclass(frozen=True)
class Machine:
    """The size and the price of a machine type."""

    cores: float
    memory_gb: float
    usd_per_hour: float


@dataclass(frozen=True)
class PriceBook:
    """Prices in US dollars as of a date: of machine types by name, and of cores and memory."""

    date: str = ""
    source: str = ""
    machines: Mapping[str, Machine] = field(default_factory=dict)
    usd_per_core_hour: float | None = None
    usd_per_gb_hour: float | None = None

    def usd_per_hour(
        self, machine: str | None, cores: float, memory_gb: float | None, scale: float = 1.0
    ) -> float | None:
        """Return the price of one node per hour: by its machine's name and scale, else by its size.

        None if the book has neither the name nor a rate, or charges for memory that the node does not limit.
        """
        if machine is not None and machine in self.machines:
            return self.machines[machine].usd_per_hour * scale
        if self.usd_per_core_hour is None and self.usd_per_gb_hour is None:
            return None
        if self.usd_per_gb_hour is not None and memory_gb is None:
            return None
        return cores * (self.usd_per_core_hour or 0.0) + (memory_gb or 0.0) * (self.usd_per_gb_hour or 0.0)


def read_prices(path: Path) -> PriceBook:
    """Read a price book; raise an error if it is not valid."""

    def make_error(message: str) -> TrainoffError:
        return TrainoffError(f"{path}: {message}")

    raw = read_bytes(path, make_error, "price book", f"a price book is a TOML file with {_FORM}", 1024 * 1024)
    try:
        return _book(tomllib.loads(raw.decode("utf-8-sig")), str(path))
    except UnicodeDecodeError:
        raise make_error("the file is not UTF-8 text; save it as UTF-8") from None
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise make_error(f"this is not TOML: {clean(str(error), 200)}") from None


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
    known = {name: _machine(name, facts, label) for name, facts in machines.items()}
    return PriceBook(date, source, known, core, memory)


def _machine(name: str, facts: Any, label: str) -> Machine:
    place = f"{label}: machine {quote(name)}"
    if not isinstance(facts, dict):
        raise TrainoffError(f"{place} must be a table, as in {_FORM}")
    for key in facts:
        if key not in _OF_MACHINE:
            raise TrainoffError(f"{place}: {quote(key)} is not known; {suggest(key, _OF_MACHINE, 'the keys are')}")
    for key in _NEEDED:
        if key not in facts:
            raise TrainoffError(f"{place} lacks `{key}`; write it as in {_FORM}")
    return Machine(**{key: _price(facts[key], f"{place}: `{key}`", free=key == "usd_per_hour") for key in _NEEDED})


def _price(value: Any, place: str, free: bool = True) -> float:
    """Return a valid price or size; only a price may be 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
    if not number or (not free and value == 0):
        least = "at least 0" if free else "above 0"
        raise TrainoffError(f"{place} is {quote(str(value))}; expected a number, {least}")
    return float(value)


def _text(value: Any, place: str) -> str:
    """Return a text; a date may be written without quotes."""
    if isinstance(value, dict | list):
        raise TrainoffError(f"{place} must be a text")
    return str(value)
