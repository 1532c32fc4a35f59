"""The schema of a key: the check of its value and the error of a wrong one; facts about engines and models."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainoff.study.suggestions import clean, nearest, quote

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LARGEST_NUMBER = 10**15  # no count, size or time of a training is larger


class InvalidValue(ValueError):
    """A value does not fit its key; the text says what it is and what was expected."""


@dataclass(frozen=True)
class Key:
    """One key of a study file. For a list, `minimum` and `maximum` are of its length."""

    name: str
    kind: type
    default: Any = None
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    above: float | None = None  # an exclusive lower bound
    maximum: float = _LARGEST_NUMBER
    named: bool = False  # the text is a name, which is also that of a folder
    item: Key | None = None  # of a list: the schema of each value
    fields: Mapping[str, Key] = field(default_factory=dict)  # of a table: its keys
    several: Key | None = None  # the schema of a list, which may replace a number
    free: bool = False  # a table with any keys, those of another program
    fit: Callable[[Any], Any] | None = None  # converts the value, or raises InvalidValue

    def expected(self) -> str:
        """Describe a valid value: `a whole number from 1 to 1,000`."""
        if self.choices:
            listed = ", ".join(_format_choice(choice) for choice in self.choices)
            return f"one of {listed}" if len(self.choices) > 1 else listed
        if self.item:
            return f"a list, each value {self.item.expected()}"
        if self.fields:
            return "a table with " + " and ".join(quote(name) for name in self.fields)
        if self.free:
            return "a table of texts, numbers, true and false"
        if self.named:
            return "at most 100 letters, digits, - _ or ., the first a letter or digit"
        return _NOUNS.get(self.kind, f"a {self.kind.__name__}") + self._range()

    def _range(self) -> str:
        if self.kind not in (int, float):
            return ""
        most = "" if self.maximum == _LARGEST_NUMBER else f"{self.maximum:,}"
        if self.above is not None:
            return f" above {self.above:,}" + (f", at most {most}" if most else "")
        if self.minimum is not None:
            return f" from {self.minimum:,} to {most}" if most else f" of at least {self.minimum:,}"
        return f" of at most {most}" if most else ""


_NOUNS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list"}


def check(key: Key, value: Any) -> Any:
    """Return the value as the program uses it (1 becomes 1.0 for a float); raise InvalidValue if it does not fit."""
    if key.several and isinstance(value, list):
        return check(key.several, value)
    if key.item:
        return _check_list(key, key.item, value)
    if key.fields:
        return _check_fields(key, value)
    if key.free:
        return _check_free(key, value)
    if key.fit:
        return key.fit(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = is_number if key.kind is float else type(value) is key.kind
    if not fits or (is_number and not _in_range(key, value)) or (key.named and not _NAME.fullmatch(value)):
        raise InvalidValue(f"{quote(key.name)} is {show(value)}; expected {key.expected()}")
    if key.choices and value not in key.choices:
        close = nearest(value, (str(choice) for choice in key.choices)) if isinstance(value, str) else None
        hint = f"; did you mean {quote(close)}?" if close else ""
        raise InvalidValue(f"{quote(key.name)} is {show(value)}; expected {key.expected()}{hint}")
    return float(value) if key.kind is float else value


def _in_range(key: Key, value: float) -> bool:
    return (
        (isinstance(value, int) or math.isfinite(value))
        and -_LARGEST_NUMBER <= value <= key.maximum
        and (key.minimum is None or value >= key.minimum)
        and (key.above is None or value > key.above)
    )


def _check_list(key: Key, item: Key, value: Any) -> list[Any]:
    if not isinstance(value, list) or not (key.minimum or 0) <= len(value) <= key.maximum:
        what = f"a list of {len(value):,}" if isinstance(value, list) and value else show(value)
        most = f"; at most {key.maximum:,} values" if key.maximum != _LARGEST_NUMBER else ""
        raise InvalidValue(f"{quote(key.name)} is {what}; expected {key.expected()}{most}")
    return [check(item, each) for each in value]


def _check_fields(key: Key, value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        raise InvalidValue(f"{quote(key.name)} is {show(value)}; expected {key.expected()}")
    for name in value:
        if name not in key.fields:
            raise InvalidValue(f"{quote(name)} is not a key of {quote(key.name)}; expected {key.expected()}")
    given = {name: check(inner, value[name]) for name, inner in key.fields.items() if name in value}
    if key.fit:
        fit: dict[str, Any] | None = key.fit(given)
        return fit
    return {name: given.get(name, inner.default) for name, inner in key.fields.items()}


def _check_free(key: Key, value: Any, prefix: str = "") -> dict[str, str]:
    """Return every value as a text under its full name: `a.b = 1` is the table b in the table a."""
    if not isinstance(value, dict):
        raise InvalidValue(f"{quote(prefix or key.name)} is {show(value)}; expected {key.expected()}")
    found: dict[str, str] = {}
    for name, inner in value.items():
        full_name = f"{prefix}.{name}" if prefix else name
        if isinstance(inner, dict):
            found |= _check_free(key, inner, full_name)
        elif isinstance(inner, str | int | float):
            found[full_name] = json.dumps(inner) if isinstance(inner, bool) else str(inner)
        else:
            raise InvalidValue(f"{quote(full_name)} is {show(inner)}; expected a text, a number, true or false")
    return found


def show(value: Any) -> str:
    """Return a value as one writes it in TOML, short and on one line."""
    if isinstance(value, str):
        return f'"{clean(value, 40)}"' if value else "an empty text"
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):  # Python refuses to print a number of thousands of digits
        return str(value) if abs(value) < _LARGEST_NUMBER else "a number of more than 15 digits"
    if isinstance(value, float):
        return repr(value)  # 5.0 stays 5.0: the point is the mistake if a whole number is expected
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "a table" if isinstance(value, dict) else "a date or time"


def _format_choice(choice: Any) -> str:
    return choice if isinstance(choice, str) else show(choice)


def knob_key(name: str, knob: KnobFacts) -> Key:
    """Return an engine's knob as a key of the study file."""
    return Key(name, knob.kind, knob.default, tuple(knob.choices), knob.minimum)


class KnobFacts(Protocol):
    """The facts that a study needs about an engine's knob; `Knob` of the engine contract fits."""

    @property
    def kind(self) -> type: ...
    @property
    def default(self) -> Any: ...
    @property
    def choices(self) -> tuple[Any, ...]: ...
    @property
    def minimum(self) -> float | None: ...


@dataclass(frozen=True)
class EngineFacts:
    """An engine's name, the modes it has (the first is the default), and its own knobs."""

    name: str
    modes: tuple[str, ...] = ("single",)
    knobs: Mapping[str, KnobFacts] = field(default_factory=dict)
    cluster: str | None = None  # the cluster software on which it runs
    settle: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values  # resolves what it really uses

    @property
    def distributed(self) -> bool:
        """Whether the engine can spread one training over several workers."""
        return self.modes != ("single",)


class ModelFacts(Protocol):
    """The facts that a study needs about a family of models; the classes of `models.FAMILIES` fit."""

    @property
    def keys(self) -> tuple[Key, ...]: ...  # of [params], besides those that all families have
    @property
    def defaults(self) -> Mapping[str, Any]: ...  # of keys that all families have, where they differ


@dataclass(frozen=True)
class Installed:
    """The engines and the families of models that are installed, by name; the first family is the default."""

    engines: Mapping[str, EngineFacts]
    models: Mapping[str, ModelFacts]
