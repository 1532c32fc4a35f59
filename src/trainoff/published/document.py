"""The documents as they were read: their tables cell by cell, their figures, and their typing errors, all kept."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

import msgspec


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Runs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    table: list[Table] = []  # msgspec gives every object its own
    fact: list[Fact] = []  # msgspec gives every object its own
    picture: list[Picture] = []  # msgspec gives every object its own
    slip: list[Slip] = []  # msgspec gives every object its own
    rows: dict[str, dict[str, dict[str, Any]]] = {}  # msgspec gives every object its own
    runs: list[Runs] = []  # msgspec gives every object its own

    def the_table(self, name: str) -> Table:
        """The table of that name."""
        return next(table for table in self.table if table.name == name)

    def the_fact(self, name: str) -> Fact:
        """The figure of that name."""
        return next(fact for fact in self.fact if fact.name == name)


@cache
def documents() -> tuple[Document, ...]:
    """The documents whose figures and claims ship with trainoff, in their order."""
    folder = resources.files("trainoff.published").joinpath("documents")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Document) for file in files)
