"""Format times, sizes, ratios and parameters for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from trainoff.study.keys import FAULT_DEFAULTS, LAST

UNITS = {"memory_gb": "memory GB", "bandwidth_mbit": "bandwidth Mbit/s"}  # keys whose last word is a unit


def seconds(value: float | None) -> str:
    """Format a time: `4 ms`, `5.1 s`, `1:38`, `2:05:00`; None is a dash, infinity `never`."""
    if value is None or math.isinf(value):
        return "-" if value is None else "never"
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 99.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def span(low: float, high: float) -> str:
    """Format a range of times: `3.2 to 3.9 s`, `80 ms to 0.2 s`, `3.2 s to never`."""
    first, last = seconds(low), seconds(high)
    unit = last[last.rfind(" ") :] if " " in last else ""
    return last if first == last else f"{first.removesuffix(unit) if unit else first} to {last}"


def about(value: float) -> str:
    """Format an estimated time: `40 s`, `4 min`, `2.5 h`."""
    if value < 90:
        return f"{max(1, round(value))} s" if value < 10 else f"{round(value, -1):.0f} s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"


def size(value: float | None) -> str:
    """Format a number of bytes: `41 MB`, `2.4 GB`; None and 0 are a dash."""
    if not value:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if value >= 9.95 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def dollars(value: float | None) -> str:
    """Format US dollars: `$1.25`, `$0.017`, `$0.00042`; None is a dash, infinity `never`."""
    if value is None or math.isinf(value):
        return "-" if value is None else "never"
    return f"${value:,.2f}" if value >= 0.995 or not value else f"${value:.{1 - math.floor(math.log10(value))}f}"


def percent(share: float) -> str:
    """Format a share as per cent without rounding: `97%`, `94.5%`."""
    return f"{100 * share:.6g}%"


def target_text(metric: str, target: float) -> str:
    """Format a target: `97%` of accuracy, `20% error`, `auc 0.75`."""
    if metric == "accuracy":
        return percent(target)
    return f"{percent(target)} error" if metric == "error" else f"{metric} {target:g}"


def quality(value: float | None) -> str:
    """Format the value of a metric to four places; None is a dash."""
    return "-" if value is None else f"{value:.4f}"


def value_text(value: object) -> str:
    """Format the value of a parameter; a list of nodes as the number of each kind."""
    if isinstance(value, list) and value and all(isinstance(node, dict) for node in value):
        return " + ".join(f"{len(list(same))} of {_node(node)}" for node, same in groupby(value))
    return fault_text(value) if isinstance(value, dict) and "action" in value else str(value)


def display_value(value: object) -> str:
    """Format the value of a parameter for tables and sentences: `15,000`, `4`, `0.4`; None is `all`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer():
        return f"{value:,.0f}"
    return "all" if value is None else value_text(value)


def key_text(key: str) -> str:
    """Format the key of a parameter: `batch size`, `memory GB`."""
    return UNITS.get(key, key.replace("_", " "))


def settings_text(values: Mapping[str, object]) -> str:
    """Format keys and values: `cores 2, batch size 128`."""
    return ", ".join(f"{key_text(key)} {display_value(value)}" for key, value in values.items())


def node_size(cores: float, memory_gb: float | None) -> str:
    """Format the size of a node: `1 core`, `2 cores and 5.5 GB`; empty if it is not known."""
    cpus = "1 core" if cores == 1 else f"{cores:g} cores" if cores else ""
    return " and ".join(part for part in (cpus, f"{memory_gb:g} GB" if memory_gb else "") if part)


def _node(facts: Mapping[str, Any]) -> str:
    """Format a node of a lab: `0.1 cores, 1.3 GB`."""
    parts = {"cores": f"{facts.get('cores', 1):g} cores", "memory_gb": f"{facts.get('memory_gb') or 0:g} GB"}
    rest = [f"{key.replace('_', ' ')} {value}" for key, value in facts.items() if key not in parts]
    return ", ".join([*(part for key, part in parts.items() if facts.get(key)), *rest])


def fault_text(fault: Mapping[str, Any]) -> str:
    """Format a fault without its defaults: `kill-process`, `pause for 10 s`, `slow node 1 to 25% at 0%`."""
    parts = [str(fault["action"])]
    if fault.get("node", LAST) != LAST:
        parts.append(f"node {fault['node']}")
    if "share" in fault:
        parts.append(f"to {percent(fault['share'])}")
    if "bandwidth_mbit" in fault:
        parts.append(f"to {fault['bandwidth_mbit']:g} Mbit/s")
    if fault.get("for_s"):
        parts.append(f"for {fault['for_s']:g} s")
    at = fault.get("at", FAULT_DEFAULTS["at"])
    if at != FAULT_DEFAULTS["at"]:
        parts.append(f"at {at}" if isinstance(at, str) else f"at {percent(at)}")
    return " ".join(parts)


def count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 trial`, `13 trials`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


MOST_NAMED = 3  # in one sentence


def some_names(names: Iterable[str]) -> str:
    """Return the first of some names, each once, and how many more there are."""
    named = list(dict.fromkeys(names))
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return ", ".join(named[:MOST_NAMED]) + more


def join_names(names: Sequence[str]) -> str:
    """Join names for a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])


def ratio_text(ratio: float | None) -> str:
    """Format a ratio to two digits, or two places near 1: `0.48`, `1.05`, `2.1`, `12`; None is a dash."""
    if ratio is None:
        return "-"
    if ratio < 1.195:
        return f"{ratio:.2f}"
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:,.0f}"


def p_value_text(p: float | None) -> str:
    """Format a p-value with its relation: `= 0.031`, `< 0.001`."""
    return "unknown" if p is None else "< 0.001" if p < 0.001 else f"= {p:.2g}"
