"""The tables of a study file, each checked key by key and value by value."""

from __future__ import annotations

from typing import Any

from trainoff.study.schema import show
from trainoff.study.source import Source
from trainoff.study.suggestions import quote
from trainoff.study.vocabulary import Allowed, Vocabulary, checked

_LISTS = "[[32], [64]]"  # several values of a key whose value is itself a list


def table(source: Source, *spot: str | int) -> dict[str, Any]:
    """The table at a spot of the file; empty if it is not there, an error if something else is."""
    value: Any = source.tables
    for step in spot:
        if isinstance(value, dict) and step not in value:
            return {}
        value = value[step]
    if not isinstance(value, dict):
        name = ".".join(str(step) for step in spot)
        raise source.at(*spot)(f"{quote(name)} is {show(value)}; expected a table, as in [{name}]")
    return value


def read_table(source: Source, words: Vocabulary, allowed: Allowed, *spot: str) -> dict[str, Any]:
    """The values of a table, each fit for its key."""
    values = {}
    for name, value in table(source, *spot).items():
        complain = source.at(*spot, name)
        if name not in allowed:
            raise complain(words.unknown(name, f"a key of [{'.'.join(spot)}]", allowed))
        sweep = name in words.params() and isinstance(value, list) and not allowed[name][0].item
        hint = "; to try several values write them in [grid]" if sweep else ""
        values[name] = checked(allowed[name], value, complain, hint)
    return values


def read_grid(source: Source, words: Vocabulary, allowed: Allowed) -> dict[str, list[Any]]:
    """[grid]: for every key the list of values to try."""
    grid = {}
    for name, values in table(source, "grid").items():
        complain = source.at("grid", name)
        if name not in allowed:
            raise complain(words.unknown(name, "a key that [grid] can vary", allowed))
        takes_list = allowed[name][0].item is not None
        if not isinstance(values, list):
            example = _LISTS if takes_list else "[1, 2]"
            raise complain(f"{quote(name)} is {show(values)}; expected a list of values, as in {example}")
        if not values:
            raise complain(f"{quote(name)} is an empty list; expected at least one value")
        hint = f"; list the lists, as in {_LISTS}" if takes_list else ""
        grid[name] = [
            checked(allowed[name], value, source.at("grid", name, index), "" if isinstance(value, list) else hint)
            for index, value in enumerate(values)
        ]
    return grid


def read_cases(source: Source, words: Vocabulary, allowed: Allowed) -> list[dict[str, Any]]:
    """[[case]]: tables of keys that vary together; a single empty one if there are none."""
    if "case" not in source.tables:
        return [{}]
    cases = source.tables["case"]
    if not isinstance(cases, list) or not cases:
        raise source.at("case")(f"`case` is {show(cases)}; expected tables, each headed [[case]]")
    return [_read_case(source, words, allowed, index) for index in range(len(cases))]


def _read_case(source: Source, words: Vocabulary, allowed: Allowed, index: int) -> dict[str, Any]:
    swept = table(source, "grid")
    values = {}
    for name, value in table(source, "case", index).items():
        complain = source.at("case", index, name)
        if name not in allowed:
            raise complain(words.unknown(name, "a key that [[case]] can vary", allowed))
        if name in swept:
            raise complain(f"{quote(name)} varies both in [grid] and in [[case]]; keep one")
        values[name] = checked(allowed[name], value, complain)
    return values
