"""The terms of which the time of a training is mixed: constant, work per node, log nodes, nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PARALLEL = 1 - 1e-9  # a cosine above which two columns say the same


@dataclass(frozen=True)
class Term:
    """One part of the time: how it goes with the nodes, and with the work as a share of the largest that was run."""

    name: str
    words: str  # "31 s ..."
    value: Callable[[Array, Array], Array]


WORK = Term("work", "divided among the nodes", lambda nodes, work: work / nodes)
CONSTANT = Term("constant", "constant", lambda nodes, work: np.ones_like(nodes))
LOG = Term("log", "for each doubling of the nodes", lambda nodes, work: np.log2(nodes))
TREE = Term("log", "for each doubling, divided too", lambda nodes, work: work * np.log2(nodes) / nodes)
NODES = Term("nodes", "for each node", lambda nodes, work: nodes)
ROWS = Term("rows", "that grow with the rows but are not divided", lambda nodes, work: work)
TERMS = (CONSTANT, WORK, LOG, NODES)  # in the order in which they are preferred
FEWER_STEPS = (CONSTANT, WORK, TREE, NODES)  # where batches grow with the nodes
NOTHING_ALONE = (LOG, TREE)  # on one node


@dataclass(frozen=True)
class Config:
    """One number of nodes and of rows, with the seconds of every run there."""

    nodes: int
    rows: float
    runs: tuple[float, ...]
    grows: bool = False  # whether batches grow with the nodes, so that there are fewer steps

    @property
    def seconds(self) -> float:
        """The median of the runs."""
        return float(np.median(self.runs))


def matrix(terms: Sequence[Term], nodes: Iterable[float], work: Iterable[float]) -> Array:
    """A row for each pair of nodes and work, a column for each term."""
    n, w = np.array([*nodes], dtype=float), np.array([*work], dtype=float)
    return np.stack([term.value(n, w) for term in terms], axis=1)


def most_rows(configs: Sequence[Config]) -> float:
    """The largest work: the others are told as a share of it."""
    return max(config.rows for config in configs)


def design(terms: Sequence[Term], configs: Sequence[Config], rows: float) -> Array:
    """The matrix of what was run; `rows` is the largest work."""
    return matrix(terms, [config.nodes for config in configs], [config.rows / rows for config in configs])


def terms_of(configs: Sequence[Config], several_rows: bool) -> tuple[Term, ...]:
    """What the time of these configurations may be mixed of.

    What nodes say to each other they say in every step. Work that is not divided is a term of its own only where the
    rows differ; else it is the constant.
    """
    terms = FEWER_STEPS if any(config.grows for config in configs) else TERMS
    return (*terms, ROWS) if several_rows else terms


def tellable(configs: Sequence[Config]) -> tuple[list[Term], list[str]]:
    """The terms that these configurations can tell apart, and a sentence for each that they cannot."""
    terms = terms_of(configs, len({config.rows for config in configs}) > 1)
    columns = design(terms, configs, most_rows(configs))
    lengths = np.linalg.norm(columns, axis=0)
    dropped: dict[str, str] = {}
    for term, length in zip(terms, lengths, strict=True):
        if length == 0:
            dropped[term.name] = f"Seconds {term.words} cannot be seen on one node."
    for a, b in combinations(range(len(terms)), 2):
        gone = terms[a].name in dropped or terms[b].name in dropped
        if not gone and columns[:, a] @ columns[:, b] > PARALLEL * lengths[a] * lengths[b]:
            # What grows with every doubling would be nothing at all on one node: rather what grows with every node.
            one, other = (a, b) if terms[a] is LOG else (b, a)
            dropped[terms[one].name] = (
                f"Seconds {terms[one].words} cannot be told from those {terms[other].words} by these runs "
                "and are left out."
            )
    return [term for term in terms if term.name not in dropped], list(dropped.values())
