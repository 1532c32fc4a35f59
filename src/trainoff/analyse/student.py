"""Student's t distribution, so that the statistics need no package that an engine may not bring."""

from __future__ import annotations

import math
from functools import cache

_TINY = 1e-300
_CLOSE = 1e-15
_MOST = 500  # terms; it takes some dozens


def two_sided(t: float, freedom: int) -> float:
    """How often |t| would be at least this large by chance alone."""
    if math.isinf(t):
        return 0.0
    return _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


@cache
def quantile(level: float, freedom: int) -> float:
    """The t that encloses this share of the distribution, from -t to t."""
    low, high = 0.0, 1.0
    while 1 - two_sided(high, freedom) < level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - two_sided(middle, freedom) < level else (low, middle)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):  # on this side it hardly converges, on the other it does
        return 1 - _beta(1 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(logs) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    value, up, down = 1.0, 1.0, 0.0
    for step in range(1, _MOST):
        half, odd = divmod(step, 2)
        if odd:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        down = 1 / (1 + term * down or _TINY)
        up = 1 + term / up or _TINY
        value *= up * down
        if abs(up * down - 1) < _CLOSE:
            break
    return value
