"""What was published as records of their own kind, so that every analysis and chart works on them, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.published.document import Document, Runs, Table, documents
from trainoff.published.units import number, seconds, share
from trainoff.records import PUBLISHED, Record
from trainoff.study.machines import shipped
from trainoff.study.suggestions import quote, suggest

NOT_STATED = 0  # workers and cores are never null in a record; this stands for what a document does not say
UNCHECKED = {"verdict": None, "reason": "published: only its figures are known"}
_READ: Mapping[str, Callable[[str], float]] = {  # how a cell is read, by the field that it fills; else as a number
    "train_s": seconds,
    "test_accuracy": share,
    "training.cpu_share": share,
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


def _records(document: Document, runs: Runs) -> Iterator[Record]:
    table = document.the_table(runs.table)
    named = document.rows[runs.named] if runs.named else {}
    chosen = named or runs.each or [row[0] for row in table.rows]
    for row in table.rows:
        if row[0] in chosen:
            facts = {**runs.all, **named.get(row[0], {}), **runs.each.get(row[0], {})}
            yield _record(document, runs, table, row, facts)


def _record(document: Document, runs: Runs, table: Table, row: list[str], facts: Mapping[str, Any]) -> Record:
    """One line of a table, or one cell of it, as a record."""
    values: dict[str, Any] = {key: _copy(value) for key, value in facts.items()}
    values["params"] = {"document": document.id, **values.get("params", {})}
    for heading, field in runs.columns.items():
        if cell := row[table.columns.index(heading)]:
            _fill(values, field, _READ.get(field, number)(cell))
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
