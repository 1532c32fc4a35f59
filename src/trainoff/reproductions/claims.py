"""What the documents claim, each tied to its evidence: a check on measured records, the design, or none that can be."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.reproductions.published import documents
from trainoff.study.suggestions import quote, suggest

KINDS = ("figure", "order", "shape", "quality")
REPRODUCTIONS = ("ml-parameters", "sync-async", "machines-and-clusters", "batch-size", "executors", "tf-on-spark")
_NEEDED = ("id", "document", "where", "says", "kind")
_EVIDENCE = ("test", "by", "not-comparable")
_KEYS = (*_NEEDED, "published", "reproduction", *_EVIDENCE, "because", "shown")
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Claim:
    """One claim of a document. Exactly one of `test`, `because` and `not_comparable` says how it is judged."""

    id: str
    document: str
    where: str  # section, table or figure
    says: str  # a quotation or a paraphrase
    kind: str  # figure, order, shape or quality
    published: str | None = None  # the figures behind it, in words
    reproduction: str | None = None  # the study whose records test it
    test: str | None = None  # the name of the check
    because: str | None = None  # how the design shows it
    shown: str | None = None  # the page of the documentation that does
    not_comparable: str | None = None  # why nothing here can test it


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim of the documents, in their order."""
    text = resources.files("trainoff.reproductions").joinpath("claims.toml").read_text(encoding="utf-8")
    return tuple(read_claims(text, "claims.toml", [document.id for document in documents()]))


def read_claims(text: str, label: str, known: Sequence[str]) -> list[Claim]:
    """The claims of a TOML text about documents that are `known`; a mistake is named with its claim."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TrainoffError(f"{label}: this is not TOML: {error}") from None
    listed = tables.get("claim")
    if set(tables) != {"claim"} or not isinstance(listed, list):
        raise TrainoffError(f"{label}: expected claims and nothing else, each headed [[claim]]")
    found: dict[str, Claim] = {}
    for place, one in enumerate(listed, 1):
        claim = _claim(one, f"{label}: claim {place}", known)
        if claim.id in found:
            raise TrainoffError(
                f"{label}: claim {place}: there is a claim {quote(claim.id)} already; choose another id"
            )
        found[claim.id] = claim
    return list(found.values())


def _claim(facts: Mapping[str, Any], label: str, known: Sequence[str]) -> Claim:
    if isinstance(facts.get("id"), str):
        label = f"{label} ({facts['id']})"
    for key, value in facts.items():
        if key not in _KEYS:
            raise TrainoffError(f"{label}: {quote(key)} is not a key of a claim; {suggest(key, _KEYS, 'the keys are')}")
        if not isinstance(value, str) or not value.strip():
            raise TrainoffError(f"{label}: {quote(key)} must be a text that is not empty")
    for key in _NEEDED:
        if key not in facts:
            raise TrainoffError(f"{label} lacks {quote(key)}")
    _check_words(facts, label, known)
    _check_evidence(facts, label)
    rest = {key: value for key, value in facts.items() if key not in ("by", "not-comparable")}
    return Claim(**rest, not_comparable=facts.get("not-comparable"))


def _check_words(facts: Mapping[str, str], label: str, known: Sequence[str]) -> None:
    """That every word stands for something."""
    choices = {"kind": KINDS, "document": known, "reproduction": REPRODUCTIONS, "by": ("design",)}
    for key, options in choices.items():
        if key in facts and facts[key] not in options:
            hint = suggest(facts[key], options, "there is")
            raise TrainoffError(f"{label}: {quote(key)} is {quote(facts[key])}; {hint}")
    for key in ("id", "test"):
        if key in facts and not _SLUG.fullmatch(facts[key]):
            raise TrainoffError(f"{label}: {quote(key)} must be small letters and digits with hyphens between them")


def _check_evidence(facts: Mapping[str, str], label: str) -> None:
    """That there is one way to judge it, and all that it needs."""
    given = [key for key in _EVIDENCE if key in facts]
    if len(given) != 1:
        raise TrainoffError(f"{label} needs exactly one of `test`, `by` and `not-comparable`, and has {len(given)}")
    if given == ["test"] and "reproduction" not in facts:
        raise TrainoffError(f"{label} has a `test` and lacks `reproduction`, whose records it is to test")
    for key in ("because", "shown"):
        if (key in facts) != (given == ["by"]):
            raise TrainoffError(f'{label}: `because` and `shown` belong to `by = "design"`, and both to it')
