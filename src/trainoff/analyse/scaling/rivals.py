"""Rival shapes: mixes of other terms that fit the same runs nearly as well, and what they would say instead."""

from __future__ import annotations

from trainoff.analyse.scaling.mix import candidates
from trainoff.analysis.scaling.model import Fit

HARDLY_WORSE = 2.0  # in logarithms of Akaike's weights: a seventh as likely as the likeliest


def rivals(fit: Fit, nodes: int, rows: float | None = None) -> tuple[float, float]:
    """The least and the most seconds with so many nodes by any mix that fits nearly as well, the chosen one included.

    Runs on a few nodes hardly tell what grows with every node from what grows with every doubling; far away the two
    part.
    """
    found = list(candidates(fit.configs).values())
    likely = [-rest / (2 * fit.noise**2) - len(mix.terms) for mix, rest in found]
    near = [mix for (mix, _), one in zip(found, likely, strict=True) if one >= max(likely) - HARDLY_WORSE]
    said = [mix.seconds(nodes, rows) for mix in (fit.mix, *near)]
    return min(said), max(said)
