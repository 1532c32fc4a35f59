"""Trials for the benchmarks: a study as text, and its records."""

from __future__ import annotations

from pathlib import Path

from trainoff import data, engines, study
from trainoff.records import Record, Store
from trainoff.runner.runner import Runner, RunObserver, prepare


def run(folder: Path, name: str, text: str) -> list[Record]:
    """Run a study; return its records, all of which must have ended well."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    plan = study.read(path, engines.facts())
    for trial in plan.trials():
        data.get(trial.data)
    store = Store(folder / "records")
    records = Runner(store, RunObserver()).run(prepare(plan, store)).records
    for record in records:
        assert record.status == "ok", f"{record.engine}: {record.reason}"
    return records
