"""Machine types by name: those that ship, and the study's own [machine.NAME]."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from trainoff.study.keys import MACHINE
from trainoff.study.source import Source
from trainoff.study.tables import read_table, table
from trainoff.study.vocabulary import Vocabulary, only

Machines = Mapping[str, Mapping[str, Any]]  # cores, memory_gb, usd_per_hour and bandwidth_mbit by name


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
