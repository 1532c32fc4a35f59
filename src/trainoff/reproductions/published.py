"""The published documents: their tables and claims as printed, and their figures as records."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from trainoff.errors import TrainoffError
from trainoff.records import PUBLISHED, DamagedRecord, Record, no_records, scan
from trainoff.study.machines import shipped
from trainoff.study.suggestions import quote, suggest

_TIME = re.compile(r"(?:(?P<minutes>[\d.]+) ?min)? ?(?:(?P<seconds>[\d.]+) ?s?)?")
_NUMBER = re.compile(r"\$?(?P<number>[\d.]+)(?: ?[%M])?")


def parse_seconds(printed: str) -> float:
    """Parse a time: `332.476`, `128s`, `9.45 s`, `4min 25s`, `1 min 32 s`."""
    found = _TIME.fullmatch(printed)
    if not found or not printed:
        raise ValueError(f"`{printed}` is not a time")
    return 60 * float(found["minutes"] or 0) + float(found["seconds"] or 0)


def parse_number(printed: str) -> float | int:
    """Parse a number without its sign or unit: `$0.27`, `140M`, `10000`."""
    found = _NUMBER.fullmatch(printed)
    if not found:
        raise ValueError(f"`{printed}` is not a number")
    return float(found["number"]) if "." in found["number"] else int(found["number"])


def parse_share(printed: str) -> float:
    """Parse per cent as a share, to the last printed digit: `91.64%` is 0.9164."""
    if not printed.endswith("%"):
        raise ValueError(f"`{printed}` is not per cent")
    return round(parse_number(printed) / 100, 6)


NOT_STATED: dict[str, Any] = {  # fields that a record must have, if the document does not state them
    "attempt": 1,
    "kind": PUBLISHED,
    "engine_version": "unknown",
    "workers": 0,
    "cores": 0.0,
    "memory_gb": None,
    "cluster": "hosts",
    "seed": 0,
    "repetition": 1,
    "position": 0,
}
_PARSERS: Mapping[str, Callable[[str], float]] = {  # of cells, by the field that they fill; else as a number
    "train_s": parse_seconds,
    "test_accuracy": parse_share,
    "training.cpu_share": parse_share,
}


def names() -> list[str]:
    """Return the names of the reproductions that have published figures."""
    return list(dict.fromkeys(runs.study for document in documents() for runs in document.runs))


def records(name: str) -> list[Record]:
    """Return the published runs of a study as records of kind `published`; what was not printed is null."""
    if name not in names():
        if any(name in document.studies for document in documents()):
            raise TrainoffError(
                f"published:{name}: it has no published figures; there are those of {', '.join(names())}"
            )
        hint = suggest(name, names(), "there are figures of")
        raise TrainoffError(f"published:{name}: there is no published study {quote(name)}; {hint}")
    return [
        record for document in documents() for runs in document.runs if runs.study == name
        for record in _records(document, runs)
    ]  # fmt: skip


def _records(document: Document, runs: PublishedRuns) -> Iterator[Record]:
    table = document.the_table(runs.table)
    named = document.rows[runs.named] if runs.named else {}
    chosen = named or runs.each or [row[0] for row in table.rows]
    for row in table.rows:
        if row[0] in chosen:
            facts = {**runs.all, **named.get(row[0], {}), **runs.each.get(row[0], {})}
            yield _record(document, runs, table, row, facts)


def _record(
    document: Document, runs: PublishedRuns, table: PublishedTable, row: list[str], facts: Mapping[str, Any]
) -> Record:
    """Return one line of a table, or one cell of it, as a record."""
    values: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in facts.items()}
    values["params"] = {"document": document.id, **values.get("params", {})}
    for heading, field in runs.columns.items():
        if cell := row[table.columns.index(heading)]:
            name, _, key = field.partition(".")  # `params.epochs` is a key of the field `params`
            place, name = (values.setdefault(name, {}), key) if key else (values, name)
            place[name] = _PARSERS.get(field, parse_number)(cell)
    if machine := values.pop("machine", None):
        size = shipped()[machine]
        values["params"]["machine"] = machine
        values["cores"], values["memory_gb"] = size["cores"], size["memory_gb"]
        values["usd_per_hour"] = size["usd_per_hour"] * values["workers"]
    cells = ", ".join([row[0], *(heading for heading in runs.columns if len(runs.columns) == 1)])
    source = f"{document.id}, {table.name}: {cells}"
    notes = {"source": source} | ({"workload": document.why_workload} if document.why_workload else {})
    values |= {key: float(values[key]) for key in ("cores", "memory_gb") if key in values}
    trial_id = f"{values['engine']}-{re.sub(r'[^a-z0-9]+', '-', source.lower()).strip('-')}"
    unchecked = {"verdict": None, "reason": "published: only its figures are known"}
    unstated = {**NOT_STATED, "targets": [], "limits": {}, "equivalence": unchecked}
    made = Record(trial_id=trial_id, study=runs.study, notes=notes, **{**unstated, **values})
    made.cost_usd = made.usd(made.train_s)
    return made


class PublishedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as printed, with every cell as text; an empty cell is empty in the document, too."""

    name: str
    caption: str
    where: str
    columns: list[str]
    units: list[str]  # one for every column; empty for a column of names
    rows: list[list[str]]
    note: str = ""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure in the text, or what the text says about a network or a parameter."""

    name: str
    where: str
    value: float | str | list[float | str]
    unit: str
    note: str = ""


class Picture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A picture, of which only the text about it is known."""

    name: str
    where: str
    note: str


class Slip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A misprint, or a contradiction to what is printed elsewhere; several of a kind are separated by `; `."""

    where: str
    printed: str
    note: str


class PublishedRuns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How lines of a table become records: the fields that all share, and those of each line."""

    study: str
    table: str
    all: dict[str, Any]  # fields of the record, and `machine`
    columns: dict[str, str]  # from the heading of a column to the field that it fills
    named: str | None = None  # of Document.rows
    each: dict[str, dict[str, Any]] = {}


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the published documents, transcribed."""

    id: str
    title: str
    form: str
    authors: list[str]
    date: str  # as printed; empty if it is not
    studies: list[str]  # the reproductions that repeat it
    engines: list[str]  # those of trainoff that correspond to its systems
    note: str
    why_workload: str = ""  # why its records have their workload, if the document does not name it
    # msgspec copies these empty defaults for every object
    table: list[PublishedTable] = []
    fact: list[Fact] = []
    picture: list[Picture] = []
    slip: list[Slip] = []
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    runs: list[PublishedRuns] = []

    def the_table(self, name: str) -> PublishedTable:
        """Return the table of that name."""
        return next(table for table in self.table if table.name == name)


@cache
def documents() -> tuple[Document, ...]:
    """Return the documents whose figures and claims ship with trainoff, in their order."""
    folder = resources.files("trainoff.reproductions").joinpath("documents")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Document) for file in files)


PREFIX = "published:"


def published_name(place: str | Path) -> str | None:
    """Return the NAME of `published:NAME`; None for a folder."""
    text = str(place)
    return text.removeprefix(PREFIX) if text.startswith(PREFIX) else None


def read_records(place: str | Path) -> tuple[list[Record], list[DamagedRecord]]:
    """Return the records of a folder or of a published study, and those that are damaged."""
    name = published_name(place)
    return scan(Path(place)) if name is None else (records(name), [])


def require_records(place: str | Path) -> tuple[list[Record], list[DamagedRecord]]:
    """Return them, or raise an error if there are none."""
    found, damaged = read_records(place)
    if not found:
        raise no_records(Path(place), damaged)
    return found, damaged


def output_path(place: Path, name: str) -> Path:
    """Return the path of a file made from records: in their folder, or for published ones in the working directory."""
    published = published_name(place)
    return place / name if published is None else Path(f"published-{published}-{name}")


KINDS = ("figure", "order", "shape", "quality")
REPRODUCTIONS = ("ml-parameters", "sync-async", "machines-and-clusters", "batch-size", "executors", "tf-on-spark")
_REQUIRED = ("id", "document", "where", "says", "kind")
_EVIDENCE = ("test", "by", "not-comparable")
_KEYS = (*_REQUIRED, "published", "reproduction", *_EVIDENCE, "because", "shown")
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Claim:
    """One claim of a document. Exactly one of `test`, `because` and `not_comparable` says how it is judged."""

    id: str
    document: str
    where: str  # section, table or figure
    says: str  # quoted or paraphrased
    kind: str  # figure, order, shape or quality
    published: str | None = None  # the figures behind it, as text
    reproduction: str | None = None  # the study whose records test it
    test: str | None = None  # the name of the check
    because: str | None = None  # how the design of an engine shows it
    shown: str | None = None  # the page of the documentation that shows it
    not_comparable: str | None = None  # why it cannot be tested here


@cache
def claims() -> tuple[Claim, ...]:
    """Return every claim of the documents, in their order."""
    text = resources.files("trainoff.reproductions").joinpath("claims.toml").read_text(encoding="utf-8")
    return tuple(read_claims(text, "claims.toml", [document.id for document in documents()]))


def read_claims(text: str, label: str, known: Sequence[str]) -> list[Claim]:
    """Return the claims in a TOML text about `known` documents; an error names the claim with the mistake."""
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
                f"{label}: claim {place}: the id {quote(claim.id)} is used by another claim; choose another id"
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
    for key in _REQUIRED:
        if key not in facts:
            raise TrainoffError(f"{label} lacks {quote(key)}")
    _check_values(facts, label, known)
    _check_evidence(facts, label)
    rest = {key: value for key, value in facts.items() if key not in ("by", "not-comparable")}
    return Claim(**rest, not_comparable=facts.get("not-comparable"))


def _check_values(facts: Mapping[str, str], label: str, known: Sequence[str]) -> None:
    """Raise an error for a value that is not one of the choices, and for a malformed id."""
    choices = {"kind": KINDS, "document": known, "reproduction": REPRODUCTIONS, "by": ("design",)}
    for key, options in choices.items():
        if key in facts and facts[key] not in options:
            hint = suggest(facts[key], options, "there is")
            raise TrainoffError(f"{label}: {quote(key)} is {quote(facts[key])}; {hint}")
    for key in ("id", "test"):
        if key in facts and not _SLUG.fullmatch(facts[key]):
            raise TrainoffError(f"{label}: {quote(key)} must be small letters and digits with hyphens between them")


def _check_evidence(facts: Mapping[str, str], label: str) -> None:
    """Raise an error unless there is one kind of evidence, with all the keys that it needs."""
    given = [key for key in _EVIDENCE if key in facts]
    if len(given) != 1:
        raise TrainoffError(f"{label} needs exactly one of `test`, `by` and `not-comparable`, and has {len(given)}")
    if given == ["test"] and "reproduction" not in facts:
        raise TrainoffError(f"{label} has a `test` and lacks `reproduction`, whose records it is to test")
    for key in ("because", "shown"):
        if (key in facts) != (given == ["by"]):
            raise TrainoffError(f'{label}: `because` and `shown` belong to `by = "design"`, and both to it')
