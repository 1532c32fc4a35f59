"""The published documents: their tables and claims as they were printed, and their figures as records."""

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
    """A time: `332.476`, `128s`, `9.45 s`, `4min 25s`, `1 min 32 s`."""
    found = _TIME.fullmatch(printed)
    if not found or not printed:
        raise ValueError(f"`{printed}` is not a time")
    return 60 * float(found["minutes"] or 0) + float(found["seconds"] or 0)


def parse_number(printed: str) -> float | int:
    """A number without its sign or unit: `$0.27`, `140M`, `10000`."""
    found = _NUMBER.fullmatch(printed)
    if not found:
        raise ValueError(f"`{printed}` is not a number")
    return float(found["number"]) if "." in found["number"] else int(found["number"])


def parse_share(printed: str) -> float:
    """Per cent as a share: `91.64%` is 0.9164, to the last digit that is printed."""
    if not printed.endswith("%"):
        raise ValueError(f"`{printed}` is not per cent")
    return round(parse_number(printed) / 100, 6)


NOT_STATED = 0  # workers and cores are never null in a record; this stands for what a document does not say
UNCHECKED = {"verdict": None, "reason": "published: only its figures are known"}
_READ: Mapping[str, Callable[[str], float]] = {  # how a cell is read, by the field that it fills; else as a number
    "train_s": parse_seconds,
    "test_accuracy": parse_share,
    "training.cpu_share": parse_share,
}


def names() -> list[str]:
    """The studies of which there are published figures, by the names of their reproductions."""
    return list(dict.fromkeys(runs.study for document in documents() for runs in document.runs))


def records(name: str) -> list[Record]:
    """The published runs of a study as records: `kind` is `published`, and what was not printed is null."""
    if name not in names():
        if any(name in document.studies for document in documents()):
            raise TrainoffError(f"published:{name}: nobody published figures of it; there are those of {_all()}")
        hint = suggest(name, names(), "there are figures of")
        raise TrainoffError(f"published:{name}: there is no published study {quote(name)}; {hint}")
    return [
        record for document in documents() for runs in document.runs if runs.study == name
        for record in _records(document, runs)
    ]  # fmt: skip


def _all() -> str:
    return ", ".join(names())


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
    """One line of a table, or one cell of it, as a record."""
    values: dict[str, Any] = {key: _copy(value) for key, value in facts.items()}
    values["params"] = {"document": document.id, **values.get("params", {})}
    for heading, field in runs.columns.items():
        if cell := row[table.columns.index(heading)]:
            _fill(values, field, _READ.get(field, parse_number)(cell))
    _give_size(values)
    cells = ", ".join([row[0], *(heading for heading in runs.columns if len(runs.columns) == 1)])
    source = f"{document.id}, {table.name}: {cells}"
    told = {"source": source} | ({"workload": document.why_workload} if document.why_workload else {})
    values |= {key: float(values[key]) for key in ("cores", "memory_gb") if key in values}
    made = Record(**{**_blank(values["engine"], runs.study, source), **values}, notes=told)
    made.cost_usd = made.usd(made.train_s)
    return made


def _blank(engine: str, study: str, source: str) -> dict[str, Any]:
    """What a record must have and no document has."""
    return {
        "trial_id": f"{engine}-{re.sub(r'[^a-z0-9]+', '-', source.lower()).strip('-')}",
        "attempt": 1,
        "study": study,
        "kind": PUBLISHED,
        "engine_version": "unknown",
        "workers": NOT_STATED,
        "cores": float(NOT_STATED),
        "memory_gb": None,
        "cluster": "hosts",
        "seed": 0,
        "repetition": 1,
        "position": 0,
        "targets": [],
        "limits": {},
        "equivalence": dict(UNCHECKED),
    }


def _give_size(values: dict[str, Any]) -> None:
    """A machine by its name has cores, memory and a price, all from the catalogue; a cluster has several of them."""
    if name := values.pop("machine", None):
        facts = shipped()[name]
        values["params"]["machine"] = name
        values["cores"], values["memory_gb"] = facts["cores"], facts["memory_gb"]
        values["usd_per_hour"] = facts["usd_per_hour"] * values["workers"]


def _fill(values: dict[str, Any], field: str, value: float) -> None:
    """Put a figure where it belongs; `params.epochs` is the key of a table."""
    name, _, key = field.partition(".")
    if key:
        values.setdefault(name, {})[key] = value
    else:
        values[name] = value


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


class PublishedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as it is printed, every cell as text; an empty one is empty in the document, too."""

    name: str
    caption: str
    where: str
    columns: list[str]
    units: list[str]  # one for every column; empty where it holds names
    rows: list[list[str]]
    note: str = ""

    def column(self, name: str) -> list[str]:
        """The cells below a heading."""
        place = self.columns.index(name)
        return [row[place] for row in self.rows]


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure that stands in the text, or what it says of a network or a parameter."""

    name: str
    where: str
    value: float | str | list[float | str]
    unit: str
    note: str = ""


class Picture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A picture, of which only what the text says is known."""

    name: str
    where: str
    note: str


class Slip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is printed wrongly, or against what is printed elsewhere; several of a kind are parted by `; `."""

    where: str
    printed: str
    note: str


class PublishedRuns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How lines of a table become records: what all have in common, and what each has of its own."""

    study: str
    table: str
    all: dict[str, Any]  # fields of the record, and `machine`
    columns: dict[str, str]  # heading of a column to the field that it fills
    named: str | None = None  # of Document.rows
    each: dict[str, dict[str, Any]] = {}  # msgspec gives every object its own


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the published documents, transcribed."""

    id: str
    title: str
    form: str
    authors: list[str]
    date: str  # as printed; empty where it is not
    studies: list[str]  # the reproductions that ask its questions again
    engines: list[str]  # what trainoff has in the place of its systems
    note: str
    why_workload: str = ""  # why its records have the workload that they have, where it is not named
    table: list[PublishedTable] = []  # msgspec gives every object its own
    fact: list[Fact] = []  # msgspec gives every object its own
    picture: list[Picture] = []  # msgspec gives every object its own
    slip: list[Slip] = []  # msgspec gives every object its own
    rows: dict[str, dict[str, dict[str, Any]]] = {}  # msgspec gives every object its own
    runs: list[PublishedRuns] = []  # msgspec gives every object its own

    def the_table(self, name: str) -> PublishedTable:
        """The table of that name."""
        return next(table for table in self.table if table.name == name)

    def the_fact(self, name: str) -> Fact:
        """The figure of that name."""
        return next(fact for fact in self.fact if fact.name == name)


@cache
def documents() -> tuple[Document, ...]:
    """The documents whose figures and claims ship with trainoff, in their order."""
    folder = resources.files("trainoff.reproductions").joinpath("documents")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Document) for file in files)


PREFIX = "published:"


def published_name(place: str | Path) -> str | None:
    """The NAME of `published:NAME`; None for a folder."""
    text = str(place)
    return text.removeprefix(PREFIX) if text.startswith(PREFIX) else None


def read_records(place: str | Path) -> tuple[list[Record], list[DamagedRecord]]:
    """The records of a folder or of a published study, and those that are damaged."""
    name = published_name(place)
    return scan(Path(place)) if name is None else (records(name), [])


def require_records(place: str | Path) -> tuple[list[Record], list[DamagedRecord]]:
    """The same where there must be some; a sentence with what to do if there are none."""
    found, damaged = read_records(place)
    if not found:
        raise no_records(Path(place), damaged)
    return found, damaged


def output_path(place: Path, name: str) -> Path:
    """Where a file that is made of records goes: into their folder; for published ones here, under their name."""
    published = published_name(place)
    return place / name if published is None else Path(f"published-{published}-{name}")


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
