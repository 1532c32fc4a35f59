"""Describe a scaling model in sentences."""

from __future__ import annotations

from trainoff.analysis.format import count, ratio_text, seconds, span
from trainoff.analysis.scaling.model import SMALL_GAIN, Fit, alternative_range

UNRELIABLE = 0.2  # an error above which "nodes make no difference" is qualified


def share_text(value: float | None) -> str:
    """Format an error or a width as whole per cent without a sign; None is a dash."""
    if value is None:
        return "-"
    return "under 1%" if abs(value) < 0.005 else f"{abs(value):.0%}"


def error_text(error: float) -> str:
    """Format by how much a prediction was too long (`+7%`) or too short; without a sign if it is almost 0."""
    return share_text(error) if abs(error) < 0.005 else f"{error:+.0%}"


def formula_text(fit: Fit) -> str:
    """Format the fitted terms: `0.8 s constant + 7.9 s divided among the nodes`."""
    terms = zip(fit.formula.terms, fit.formula.coefficients, strict=True)
    return " + ".join(f"{seconds(value)} {term.description}" for term, value in terms)


def interpretation(fit: Fit) -> str:
    """Say what more nodes gain, in a sentence or two."""
    alone = fit.formula.parts(1)
    divided = alone.get("work", 0.0) / sum(alone.values())
    best, enough = fit.best_nodes(), fit.enough_nodes()
    if not {"work", "log", "nodes"} & alone.keys():
        worst = fit.grade.worst
        doubt = f"; but this model was off by up to {share_text(worst)}, so it may have missed one"
        unsure = worst is not None and worst > UNRELIABLE
        return f"Nodes make no difference: nothing of the time is divided among them{doubt if unsure else ''}."
    if best == 1:
        return "One node is the fastest: further nodes cost more time than they save."
    if best < fit.horizon:
        ends = f"{count(best, 'node')} are the fastest ({ratio_text(fit.speed_up(best))} times one), more are slower"
    else:
        ends = "more nodes are never slower"
    beyond = " (beyond what was measured)" if enough > fit.counts[-1] else ""
    return (
        f"On one node {share_text(divided)} of the time is work that nodes divide. By the model {ends}; "
        f"more than {count(enough, 'node')} gain less than 10%{beyond}."
    )


def shape_caution(fit: Fit, nodes: int) -> str | None:
    """Say how far an extrapolation depends on the shape of the model; None if other shapes predict the same."""
    if nodes <= fit.counts[-1]:
        return None
    low, high = alternative_range(fit, nodes)
    middle = fit.formula.seconds(nodes)
    if max(high / middle, middle / low) < 1 + SMALL_GAIN:
        return None
    rows = f" and {fit.formula.rows:,.0f} rows" if len({each.rows for each in fit.measurements}) > 1 else ""
    return (
        f"The prediction for {nodes:,} nodes{rows} depends on the shape of the model: others that fit these runs "
        f"nearly as well predict {span(low, high)}. A run there, or nearer to it, would decide."
    )


def grade_text(fit: Fit) -> str:
    """Describe the grade in a sentence."""
    grade = fit.grade
    if grade.left_out:
        errors = ", ".join(f"{error_text(error)} at {nodes:,}" for nodes, error in grade.left_out.items())
        text = f"Checked by leaving out each number of nodes in turn, its predictions were off by {errors}."
    else:
        text = "Two node counts are too few to check the model; a third one would do."
    if not grade.held_out:
        return text
    several = len({rows for _, rows in grade.held_out}) > 1
    errors = ", ".join(
        f"{error_text(error)} at {nodes:,}{f' ({rows:,.0f} rows)' if several else ''}"
        for (nodes, rows), error in grade.held_out.items()
    )
    return f"{text} On runs that were held out it was off by {errors}."
