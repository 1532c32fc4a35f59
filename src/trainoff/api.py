"""The Python API: read a study, run it, load its records."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff import engines, study
from trainoff.analysis import newest
from trainoff.cli.show import print_board
from trainoff.records import Record, Store, table
from trainoff.report.progress import ProgressFile
from trainoff.reproductions.published import read_records
from trainoff.runner.estimate import Clock, Estimator
from trainoff.runner.runner import Runner, get_data, prepare
from trainoff.study import Study

if TYPE_CHECKING:
    import polars

    from trainoff.report.html import ChartFigure

__all__ = ["Results", "Study", "load", "read", "run"]


@dataclass(frozen=True)
class Results:
    """The newest record of each trial in a folder; displayed as the leader board."""

    folder: Path
    records: Sequence[Record]

    def table(self) -> polars.DataFrame:
        """Return a Polars frame with a row per record; its `to_pandas()` returns a pandas one."""
        return table(self.records)

    def board(self, width: int = 100) -> str:
        """Return the leader board and the closing sentences as text."""
        from rich.console import Console

        text = io.StringIO()
        print_board(self.records, self.folder, Console(file=text, width=width, highlight=False, markup=False))
        return text.getvalue()

    def plot(self, what: str = "curve", x: str | None = None, workload: str | None = None) -> ChartFigure:
        """Return a chart of the report, such as `plot("accuracy", x="core_s")`, "phases", "target" or "pareto"."""
        from trainoff.report.html import plot

        return plot(list(self.records), self.folder, what, x, workload)

    def __repr__(self) -> str:
        return self.board()

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(self.board())}</pre>"


def read(path: str | Path, *, sets: Sequence[str] = (), repeat: int | None = None) -> Study:
    """Read and check a study file; `sets` are `key=value` overrides, as on the command line."""
    return study.read(Path(path), engines.facts(), overrides=sets, repeat=repeat)


def load(folder: str | Path) -> Results:
    """Load the records below a folder or of `published:NAME`, without damaged ones (`trainoff show` names them)."""
    return Results(Path(folder), newest(read_records(folder)[0]))


def run(planned: Study | str | Path, out: str | Path = "results", *, retry: Sequence[str] = ()) -> Results:
    """Run the trials of a study that have no record yet, without output, and return all its records."""
    planned = planned if isinstance(planned, Study) else read(planned)
    store = Store(Path(out) / planned.name)
    get_data(planned, None)
    store.prepare()
    tasks = prepare(planned, store, retry)
    clock = Clock(tasks, Estimator.from_records_in(Path(out)))
    with ProgressFile(store, clock) as progress:
        result = Runner(store, clock, progress).run(tasks)
    return Results(store.folder, result.records)
