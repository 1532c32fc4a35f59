"""The sentences and the table of `trainoff advise`, and the same for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trainoff.analysis import unnamed
from trainoff.analysis.advice import (
    Advice,
    Weighed,
    chances,
    expected,
    headline,
    likely,
    limit,
    runner_up,
    what_for,
    why,
)
from trainoff.analysis.format import dollars, mark, seconds, span
from trainoff.report.columns import ALWAYS, Column, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_SHOWN = 8


class Answered(Protocol):
    """The advice, what it is about, and what would tell more."""

    @property
    def advice(self) -> Advice: ...
    @property
    def target(self) -> float: ...
    @property
    def metric(self) -> str: ...
    @property
    def workload(self) -> str: ...
    @property
    def cold(self) -> bool: ...
    @property
    def other_clock(self) -> str | None: ...
    @property
    def command(self) -> str | None: ...
    @property
    def unpriced(self) -> str | None: ...


def show(answer: Answered, console: Console) -> None:
    """Print what to use, how sure that is, why, who else there is, and what would tell more."""
    advice = answer.advice
    console.print(headline(advice), style="bold")
    for line in _facts(answer):
        console.print(line)
    console.print("\nwhy", style="dim")
    for line in _reasons(answer):
        console.print(line)
    if len(advice.ranked) > 1:
        console.print()
        console.print(_table(answer, console.width))
        if len(advice.ranked) > MOST_SHOWN:
            console.print(f"and {len(advice.ranked) - MOST_SHOWN} more", style="dim")
    if told := what_for(advice, bool(answer.command)):
        console.print(f"\n{told}")
    if answer.command:
        console.print(f"  {answer.command}", soft_wrap=True)


def _facts(answer: Answered) -> Iterator[str]:
    advice = answer.advice
    yield expected(advice.choice.candidate, answer.metric, answer.target, answer.cold)
    for line in (limit(advice), chances(advice)):
        if line:
            yield line
    yield from runner_up(advice)


def _reasons(answer: Answered) -> Iterator[str]:
    yield from why(answer.advice, answer.metric, answer.target)
    if answer.other_clock:
        clock = "of the training alone" if answer.cold else "from cold (--cold)"
        yield f"By the time {clock} the choice would be {answer.other_clock}."
    if answer.unpriced and not answer.advice.unpriced:
        yield answer.unpriced
    if usual := unnamed([*(one.candidate.group for one in answer.advice.ranked), *answer.advice.field.never]):
        yield usual


def _table(answer: Answered, width: int) -> Table:
    shown = answer.advice.ranked[:MOST_SHOWN]
    candidates = [one.candidate for one in shown]
    goal = f"to {mark(answer.metric, answer.target)}"
    money = any(one.usd for one in candidates)
    limited = any(one.kept < 1 for one in shown) and bool(str(answer.advice.limits))
    columns = [
        Column("setting", [one.name for one in candidates], shrinks=True),
        Column("nodes", [f"{one.nodes or '-'}" for one in candidates], 40, right=True),
        Column(goal, [seconds(one.seconds.middle) for one in candidates], right=True),
        Column("from to", [span(one.seconds.low, one.seconds.high) for one in candidates], 60, right=True),
        *([Column("cost", [dollars(one.usd.middle if one.usd else None) for one in candidates], right=True)] * money),
        *([Column("keeps limits", [likely(one.kept) for one in shown], 50, right=True)] * limited),
        Column("best", [likely(_best(one)) for one in shown], ALWAYS, right=True),
        Column("runs", [str(one.evidence.runs) if one.measured else "-" for one in candidates], 30, right=True),
        Column("", [_mark(one) for one in shown], 70),
    ]
    return table(columns, width, [None] * len(shown), folds=True)


def _best(one: Weighed) -> float:
    return one.standing.best if one.standing else 0.0


def _mark(one: Weighed) -> str:
    if one.candidate.measured:
        return ""
    return "extrapolated" if one.candidate.extrapolated else "predicted"


def for_programs(answer: Answered) -> dict[str, Any]:
    """All of it as JSON has it; what is not known is null."""
    advice = answer.advice
    return {
        "workload": answer.workload,
        "metric": answer.metric,
        "target": answer.target,
        "clock": "cold" if answer.cold else "training",
        "goal": advice.goal,
        "max_seconds": advice.limits.max_seconds,
        "max_cost": advice.limits.max_cost,
        "verdict": advice.verdict,
        "indicative": advice.indicative,
        "choice": _weighed(advice.choice),
        "runner_up": _behind(advice),
        "ranked": [_weighed(one) for one in advice.ranked],
        "too_much": [_weighed(one) for one in advice.too_much],
        "never": [group.name for group in advice.field.never],
        "unpriced": [one.name for one in advice.unpriced],
        "other_clock": answer.other_clock,
        "next": what_for(advice, bool(answer.command)),
        "command": answer.command,
        "sentences": _sentences(answer),
    }


def _sentences(answer: Answered) -> Sequence[str]:
    return [headline(answer.advice), *_facts(answer), *_reasons(answer)]


def _behind(advice: Advice) -> dict[str, Any] | None:
    if advice.runner_up is None:
        return None
    low, middle, high = advice.behind(advice.runner_up)
    return {**_weighed(advice.runner_up), "times_as_much": {"low": low, "middle": middle, "high": high}}


def _weighed(one: Weighed) -> dict[str, Any]:
    standing = one.standing
    return {
        **one.candidate.to_json(),
        "keeps_limits": one.kept,
        "best": standing.best if standing else None,
        "near_best": standing.near if standing else None,
        "regret": standing.regret if standing else None,
    }
