"""Which keys may stand where in one study: the catalogue, and the knobs of the study's engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainoff.study.facts import EngineFacts
from trainoff.study.keys import CLUSTER, LIMITS, PARAMS, TOP
from trainoff.study.schema import Key, Wrong, check, knob_key
from trainoff.study.source import Complain
from trainoff.study.suggestions import quote, same_as, suggest

OF_WORKER = ("cores", "memory_gb")
Allowed = Mapping[str, Sequence[Key]]  # a knob that two engines have must fit both


def only(keys: Mapping[str, Key]) -> Allowed:
    """Exactly these keys."""
    return {name: [key] for name, key in keys.items()}


@dataclass(frozen=True)
class Vocabulary:
    """The keys that one study may use, given its engines and all that are installed."""

    engines: Sequence[EngineFacts]
    installed: Mapping[str, EngineFacts]

    def params(self, engines: Iterable[EngineFacts] | None = None) -> Allowed:
        """What may stand in [params], or the same of some engines."""
        known = list(self.engines if engines is None else engines)
        modes = tuple(dict.fromkeys(mode for engine in known for mode in engine.modes))
        allowed = {name: [key] for name, key in PARAMS.items()}
        allowed["mode"] = [replace(PARAMS["mode"], choices=modes)]
        for engine in known:
            for name, knob in engine.knobs.items():
                if name not in PARAMS and name not in CLUSTER:
                    allowed.setdefault(name, []).append(knob_key(name, knob))
        return allowed

    def of_engine(self, engine: EngineFacts) -> Allowed:
        """What may stand in [engine.NAME]: its parameters and knobs, and how large its workers are."""
        return {**self.params([engine]), **{name: [CLUSTER[name]] for name in OF_WORKER}}

    def sweepable(self, workloads: Iterable[str]) -> Allowed:
        """What may stand in [grid], in [[case]] and in --set."""
        workload = replace(TOP["workload"], choices=tuple(workloads))
        return {**self.params(), **only(CLUSTER), "workload": [workload]}

    def unknown(self, name: str, what: str, allowed: Iterable[str]) -> str:
        """The sentence for a key that is not known where it stands: where it belongs, or the nearest name."""
        names = list(allowed)
        hint = self._belongs(name) or _elsewhere(name, names) or suggest(name, names, "the keys are")
        return f"{quote(name)} is not {what}; {hint}"

    def _belongs(self, name: str) -> str | None:
        if home := _home(name):
            return f"it belongs {home}"
        for engine in (*self.engines, *self.installed.values()):
            if name in engine.knobs:
                here = engine in self.engines
                other = f"it is a knob of {quote(engine.name)}, which is not among the study's engines"
                return f"it belongs in [engine.{engine.name}]" if here else other
        return None


def _home(name: str) -> str | None:
    """Where a key of the catalogue stands in a study file."""
    for keys, home in (
        (PARAMS, "in [params]"),
        (CLUSTER, "in [cluster]"),
        (LIMITS, "in [limits]"),
        (TOP, "at the top of the file"),
    ):
        if name in keys:
            return home
    return None


def _elsewhere(name: str, allowed: Sequence[str]) -> str | None:
    """The hint for another program's name of a key that does not belong here either."""
    ours = same_as(name)
    if ours is None or ours in allowed or not (home := _home(ours)):
        return None
    return f"did you mean {quote(ours)}, which belongs {home}?"


def checked(keys: Sequence[Key], value: Any, complain: Complain, hint: str = "") -> Any:
    """The value as every engine that knows the key can use it; else the error that `complain` makes."""
    try:
        fit, *_ = [check(key, value) for key in keys]
    except Wrong as wrong:
        raise complain(f"{wrong}{hint}") from None
    return fit
