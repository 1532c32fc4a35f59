"""What a scaling model says, in sentences."""

from __future__ import annotations

from trainoff.analysis.format import count, ratio_text, seconds, span
from trainoff.analysis.scaling.model import SMALL_GAIN, Fit, alternative_range

UNRELIABLE = 0.2  # an error beyond which it is not said without a doubt that nodes make no difference


def share_text(value: float | None) -> str:
    """An error or a width as whole per cent, without a sign; a dash where it is not known."""
    if value is None:
        return "-"
    return "under 1%" if abs(value) < 0.005 else f"{abs(value):.0%}"


def error_text(error: float) -> str:
    """By how much a prediction was too long (`+7%`) or too short; without a sign where that is next to nothing."""
    return share_text(error) if abs(error) < 0.005 else f"{error:+.0%}"


def formula_text(fit: Fit) -> str:
    """The fitted terms: `0.8 s constant + 7.9 s divided among the nodes`."""
    parts = [
        f"{seconds(value)} {term.description}"
        for term, value in zip(fit.formula.terms, fit.formula.coefficients, strict=True)
    ]
    return " + ".join(parts)


def interpretation(fit: Fit) -> str:
    """What more nodes bring, in a sentence or two."""
    alone = fit.formula.parts(1)
    divided = alone.get("work", 0.0) / sum(alone.values())
    best, enough, largest = fit.best_nodes(), fit.enough_nodes(), fit.counts[-1]
    if not {"work", "log", "nodes"} & alone.keys():
        return f"Nodes make no difference: nothing of the time is divided among them{_unless(fit)}."
    if best == 1:
        return "One node is the fastest: what more of them cost is more than what they take over."
    first = f"On one node {share_text(divided)} of the time is work that nodes divide."
    if best < fit.horizon:
        ends = f"{count(best, 'node')} are the fastest ({ratio_text(fit.speed_up(best))} times one), more are slower"
    else:
        ends = "more nodes are never slower"
    where = " (beyond what was measured)" if enough > largest else ""
    return f"{first} By the model {ends}; more than {count(enough, 'node')} bring less than 10%{where}."


def _unless(fit: Fit) -> str:
    """That a model which sees nothing may only see badly."""
    worst = fit.grade.worst
    return (
        f"; but this model was off by up to {share_text(worst)}, so it may not see it"
        if worst and worst > UNRELIABLE
        else ""
    )


def shape_caution(fit: Fit, nodes: int) -> str | None:
    """How far a prediction beyond the measured hangs on the shape that was chosen; None where others say the same."""
    if nodes <= fit.counts[-1]:
        return None
    low, high = alternative_range(fit, nodes)
    middle = fit.formula.seconds(nodes)
    if max(high / middle, middle / low) < 1 + SMALL_GAIN:
        return None
    rows = f" and {fit.formula.rows:,.0f} rows" if len({config.rows for config in fit.measurements}) > 1 else ""
    return (
        f"With {nodes:,} nodes{rows} much hangs on the shape of the model: others that fit these runs nearly as well "
        f"say {span(low, high)}. A run there, or nearer to it, would tell."
    )


def grade_text(fit: Fit) -> str:
    """The grade in a sentence."""
    said = []
    if fit.grade.left_out:
        each = ", ".join(f"{error_text(error)} at {nodes:,}" for nodes, error in fit.grade.left_out.items())
        said.append(f"Checked by leaving out each number of nodes in turn, its predictions were off by {each}.")
    else:
        said.append("Two node counts leave nothing to check the model by; a third one would.")
    if fit.grade.held_out:
        several = len({rows for _, rows in fit.grade.held_out}) > 1
        each = ", ".join(
            f"{error_text(error)} at {nodes:,}{f' ({rows:,.0f} rows)' if several else ''}"
            for (nodes, rows), error in fit.grade.held_out.items()
        )
        said.append(f"On runs that were held out it was off by {each}.")
    return " ".join(said)
