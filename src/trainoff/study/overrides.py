"""What the command line changes in a study: --set key=value."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.study.keys import LIMITS, TOP, Vocabulary, checked, only
from trainoff.study.source import Complain
from trainoff.study.suggestions import clean, quote, suggest

_TOP = {name: TOP[name] for name in ("name", "targets", "repeat")}


@dataclass(frozen=True)
class Overrides:
    """The values that --set gives, by where they apply; the last --set of a key holds."""

    top: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)  # for every engine that knows the key
    by_engine: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_sets(texts: Iterable[str], words: Vocabulary, workloads: Mapping[str, object]) -> Overrides:
    """Every `key=value` text, checked as the study file's own keys are."""
    sets = Overrides()
    for text in texts:
        complain = complaint(text)
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise complain("expected key=value, as in --set learning_rate=0.1")
        _read_set(sets, key.strip(), parse(value), complain, words, workloads)
    return sets


def complaint(text: str) -> Complain:
    """Make errors that begin with the --set they are about."""
    return lambda message: TrainoffError(f"--set {clean(text)}: {message}")


def parse(text: str) -> Any:
    """A value as TOML writes it; a bare word is a text."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text.strip()
    return tables["value"] if tables.keys() == {"value"} else text.strip()


def _read_set(
    sets: Overrides, key: str, value: Any, complain: Complain, words: Vocabulary, workloads: Mapping[str, object]
) -> None:
    if key.startswith("engine."):
        _read_engine_set(sets, key, value, complain, words)
        return
    sweepable = words.sweepable(workloads)
    for target, allowed in ((sets.top, only(_TOP)), (sets.limits, only(LIMITS)), (sets.values, sweepable)):
        if key in allowed:
            target[key] = checked(allowed[key], value, complain)
            return
    if key == "engines":
        raise complain("`engines` cannot be set here; choose among the study's engines with --engine")
    options = [*_TOP, *LIMITS, *sweepable]
    last = key.rpartition(".")[2]
    if last in options:
        raise complain(f"{quote(key)} is not a key that can be set; did you mean {quote(last)}?")
    raise complain(words.unknown(key, "a key that can be set", options))


def _read_engine_set(sets: Overrides, key: str, value: Any, complain: Complain, words: Vocabulary) -> None:
    _, _, rest = key.partition(".")
    engines = {engine.name: engine for engine in words.engines}
    name, _, inner = rest.rpartition(".")
    if not name:
        raise complain("expected engine.NAME.key=value")
    if name not in engines:
        raise complain(f"{quote(name)} is not an engine of the study; {suggest(name, engines, 'they are')}")
    allowed = words.of_engine(engines[name])
    if inner not in allowed:
        raise complain(words.unknown(inner, f"a key of [engine.{name}]", allowed))
    sets.by_engine.setdefault(name, {})[inner] = checked(allowed[inner], value, complain)
