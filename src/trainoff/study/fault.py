"""A fault: what is done to a node on purpose while it trains, and when."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainoff.study.schema import InvalidValue, Key, show
from trainoff.study.suggestions import quote

LAST = -1  # the last node; the first carries the driver, whose loss is another matter
ALWAYS: Mapping[str, Any] = {"node": LAST, "at": 0.3}  # what every fault has
FIELDS: Mapping[str, Mapping[str, Any]] = {  # what else an action has, and where that is left out
    "kill-process": {},
    "kill-node": {},
    "pause": {"for_s": 10.0},
    "slow": {"share": 0.25, "for_s": None},
    "cut": {"for_s": 10.0},
    "limit": {"bandwidth_mbit": 10.0, "for_s": None},
    "fill": {},
    "none": {},
}
NEED_LAB = ("kill-node", "cut", "limit", "fill")  # processes of one machine share its network, its memory and its fate

_SECOND = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?s")
_STEP = re.compile(r"step (\d{1,12})")
_MOMENT = 'a share of the training from 0 to below 1 as in 0.3, a second as in "10 s" or a step as in "step 200"'


@dataclass(frozen=True)
class Moment:
    """When a fault is done: after a share of the training, some seconds of it, or a step. One of them is given."""

    share: float | None = None
    second: float | None = None
    step: int | None = None


def moment(at: Any) -> Moment | None:
    """The moment that a study file means; None if it means none."""
    if isinstance(at, int | float) and not isinstance(at, bool):
        return Moment(share=float(at)) if 0 <= at < 1 else None
    if not isinstance(at, str):
        return None
    if found := _SECOND.fullmatch(at):
        return Moment(second=float(found[1]))
    found = _STEP.fullmatch(at)
    return Moment(step=int(found[1])) if found else None


def _fit_moment(value: Any) -> float | str:
    """A moment as records have it: a share, or a text written in one way only."""
    found = moment(value)
    if found is None:
        raise InvalidValue(f"`at` is {show(value)}; expected {_MOMENT}")
    if found.share is not None:
        return found.share
    if found.second is None:
        return f"step {found.step}"
    return f"{found.second:.6f}".rstrip("0").rstrip(".") + " s"


def _fit_fault(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fault with what was left out; None for the action `none`. What an action does not have is refused."""
    if "action" not in given:
        raise InvalidValue(f"`fault` has no `action`; expected one of {', '.join(FIELDS)}")
    action = given["action"]
    own = {} if action == "none" else {**ALWAYS, **FIELDS[action]}
    for name in given:
        if name != "action" and name not in own:
            has = ", ".join(map(quote, own)) or "nothing else"
            raise InvalidValue(
                f"{quote(name)} means nothing for the fault {quote(action)}, which has {has}; leave it out"
            )
    return {"action": action, **own, **given} if own else None


FAULT = Key(
    "fault",
    dict,
    "what is done to a node on purpose while it trains",
    fields={
        "action": Key("action", str, "what is done", choices=tuple(FIELDS)),
        "node": Key("node", int, "to which node; the last by default", LAST, minimum=LAST, maximum=10_000),
        "at": Key("at", object, "when", ALWAYS["at"], fit=_fit_moment),
        "for_s": Key("for_s", float, "for how many seconds, until it is healed", above=0, maximum=10**6),
        "share": Key("share", float, "at which share of its speed it runs", 0.25, minimum=0.01, maximum=1),
        "bandwidth_mbit": Key("bandwidth_mbit", float, "how much goes through its link", above=0, maximum=10**6),
    },
    fit=_fit_fault,
)
