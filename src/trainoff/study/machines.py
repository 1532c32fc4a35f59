"""The nodes of an emulated cluster: how many there are, and how large each of them is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from trainoff.study.keys import MACHINE, Vocabulary, only, read_table, table
from trainoff.study.source import Source

if TYPE_CHECKING:
    from trainoff.study.study import Trial


GIB = 2**30
LINK = ("bandwidth_mbit", "latency_ms")
OF_LAB = ("nodes", "first", *LINK, "machine", "scale", "memory_scale")  # keys that say nothing of other clusters
_DIGITS = 6
Machines = Mapping[str, Mapping[str, Any]]  # their sizes, by their names


@dataclass(frozen=True)
class NodeSpec:
    """One node: its share of the CPUs, its memory, its link."""

    cores: float
    memory_gb: float | None = None
    bandwidth_mbit: float | None = None
    latency_ms: float | None = None

    @property
    def memory_bytes(self) -> int | None:
        return round(self.memory_gb * GIB) if self.memory_gb else None


def nodes_of(trial: Trial) -> list[NodeSpec]:
    """The nodes that a trial asks for, one for each worker; all alike unless they were listed."""
    alike = {"cores": trial.cores, "memory_gb": trial.memory_gb, **{key: trial.params.get(key) for key in LINK}}
    listed = trial.params.get("nodes")
    own: list[Mapping[str, Any]] = listed if isinstance(listed, list) else [{}] * trial.workers
    return [NodeSpec(**{**alike, **node}) for node in own]


def settle_nodes(values: dict[str, Any], machines: Machines, asked: Mapping[str, Any]) -> None:
    """Turn what was asked of a lab into the sizes of its nodes; elsewhere there is nothing to settle.

    A machine's name stands for its cores and its memory, times the scales; what the study says of all nodes besides
    (`asked`) is stronger, and what it says of one node is strongest. `usd_per_hour` becomes what each node costs.
    """
    if values["kind"] != "lab":
        for key in OF_LAB:
            values.pop(key, None)
        return
    nodes, first = values.get("nodes") or values["workers"], values.pop("first", None)
    alike = _sized(values.get("machine"), machines, values)
    values |= {key: size for key, size in alike.items() if key not in asked}
    if first and not isinstance(nodes, list):
        nodes = [first, *[{}] * (nodes - 1)]
    if isinstance(nodes, list):
        own = [node.get("machine") or values.get("machine") for node in nodes]
        values["usd_per_hour"] = [_priced(name, machines, values) for name in own]
        common = {key: values[key] for key in ("cores", "memory_gb")}
        values["nodes"] = nodes = [{**common, **_own(node, machines, values)} for node in nodes]
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


def _own(node: Mapping[str, Any], machines: Machines, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a node in a list says of itself, a machine by its size."""
    own = {key: size for key, size in node.items() if size is not None}
    return {**_sized(own.pop("machine", None), machines, values), **own}


def _sized(name: str | None, machines: Machines, values: Mapping[str, Any]) -> dict[str, Any]:
    """The size of a machine, scaled; nothing if none is named."""
    if name is None:
        return {}
    facts, scale = machines[name], values["scale"]
    memory = scale if values["memory_scale"] is None else values["memory_scale"]
    sized = {"cores": round(facts["cores"] * scale, _DIGITS), "memory_gb": round(facts["memory_gb"] * memory, _DIGITS)}
    return {**sized, **({"bandwidth_mbit": facts["bandwidth_mbit"]} if "bandwidth_mbit" in facts else {})}


def _priced(name: str | None, machines: Machines, values: Mapping[str, Any]) -> float | None:
    """What an hour of a node costs: of a part of a machine that part of its price; None where it is not known."""
    price = machines[name].get("usd_per_hour") if name is not None else None
    return None if price is None else price * values["scale"]


def price_of(nodes: Sequence[float | None]) -> float | None:
    """What an hour of all nodes costs; None if there are none, or some node has no price."""
    known = [price for price in nodes if price is not None]
    return sum(known) if known and len(known) == len(nodes) else None


@cache
def shipped() -> Machines:
    """The catalogue that comes with trainoff."""
    found: Machines = catalogue()["machine"]
    return found


@cache
def catalogue() -> Mapping[str, Any]:
    """The file of the catalogue: the machines, and the date and source of their prices."""
    return tomllib.loads(resources.files("trainoff.study").joinpath("machines.toml").read_text())


def read_machines(source: Source, words: Vocabulary) -> Machines:
    """The catalogue with what the study adds to it."""
    own = {name: read_table(source, words, only(MACHINE), "machine", name) for name in table(source, "machine")}
    for name, facts in own.items():
        for key in ("cores", "memory_gb"):
            if key not in facts:
                raise source.at("machine", name)(f"machine `{name}` lacks `{key}`; write it in [machine.{name}]")
    return {**shipped(), **own}
