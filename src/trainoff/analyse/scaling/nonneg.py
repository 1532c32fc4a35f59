"""Least squares without negative coefficients, exactly: there are so few columns that every choice can be tried."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from trainoff.analyse.scaling.terms import Array

RANK = 1e-8  # singular values below this part of the largest, of columns of length one, are none
SLACK = 1e-12  # differences relative to the whole that are rounding
Choice = tuple[int, ...]  # columns


class Solver:
    """The non-negative least squares of one matrix, for as many right sides as wanted at once.

    The solution is the best among the plain least squares of all choices of columns that have no negative coefficient.
    Choices of columns that cannot be told apart, or of more than `most`, are left out.
    """

    def __init__(self, matrix: Array, most: int | None = None) -> None:
        self._matrix = matrix
        self._width = matrix.shape[1]
        most = min(*matrix.shape, most or self._width)
        self._inverses: dict[Choice, Array] = {}
        for size in range(1, most + 1):
            self._inverses |= _inverses(matrix, list(combinations(range(self._width), size)))

    def solve(self, right: Array) -> Array:
        """Coefficients for each right side (a column of `right`), a row for each column of the matrix."""
        best = np.zeros((self._width, right.shape[1]))
        least = np.sum(right**2, axis=0)
        for chosen, inverse in self._inverses.items():
            found, rest, good = self._plain(chosen, inverse, right)
            better = good & (rest < least - SLACK * np.maximum(least, 1.0))
            least = np.where(better, rest, least)
            best[:, better] = 0.0
            for column, values in zip(chosen, found, strict=True):
                best[column, better] = values[better]
        return best

    def each(self, right: Array) -> dict[Choice, tuple[Array, float]]:
        """For one right side the best coefficients within each choice of columns, and their sum of squares."""
        zero = (np.zeros(self._width), float(right @ right))
        found: dict[Choice, tuple[Array, float]] = {}
        for chosen, inverse in self._inverses.items():
            values, rest, good = self._plain(chosen, inverse, right[:, None])
            if good[0]:
                whole = np.zeros(self._width)
                whole[list(chosen)] = values[:, 0]
                found[chosen] = (whole, float(rest[0]))
            else:  # then the best lies where one of these is zero
                fewer = [found.get(part, zero) for part in combinations(chosen, len(chosen) - 1)]
                found[chosen] = min(fewer, default=zero, key=lambda one: one[1])
        return found

    def _plain(self, chosen: Choice, inverse: Array, right: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Least squares within a choice: coefficients, sums of squares, and where no coefficient is negative."""
        found = inverse @ right
        rest = np.sum((right - self._matrix[:, chosen] @ found) ** 2, axis=0)
        return np.maximum(found, 0.0), rest, np.all(found >= -SLACK * np.abs(found).max(axis=0), axis=0)


def nnls(matrix: Array, right: Array) -> Array:
    """The non-negative coefficients that come closest to one right side."""
    return Solver(matrix).solve(right[:, None])[:, 0]


def _inverses(matrix: Array, choices: list[Choice]) -> dict[Choice, Array]:
    """What turns a right side into coefficients, for each choice (all of one size) that can be told apart."""
    stacked = np.stack([matrix[:, chosen] for chosen in choices])
    lengths = np.linalg.norm(stacked, axis=1, keepdims=True)
    lengths[lengths == 0] = 1.0
    left, values, right = np.linalg.svd(stacked / lengths, full_matrices=False)
    apart = values[:, -1] >= RANK * np.maximum(values[:, 0], 1.0)
    inverses = np.swapaxes(right, 1, 2) / np.where(values, values, 1.0)[:, None, :] @ np.swapaxes(left, 1, 2)
    inverses = inverses / np.swapaxes(lengths, 1, 2)
    return {chosen: inverse for chosen, inverse, good in zip(choices, inverses, apart, strict=True) if good}
