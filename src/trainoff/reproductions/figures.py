"""The figures of the documents drawn again, published beside measured: ratios and shapes, not seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainoff.records import PUBLISHED, Record
from trainoff.reproductions.evidence import Evidence, EvidenceMissing, field_of, rows_of_a_worker
from trainoff.reproductions.published import names as with_figures
from trainoff.reproductions.published import records as published

HERE = "measured here"
LARGE_WORKLOADS, LARGE_ROWS = ("mnist-large-mlp", "emnist-mlp"), (60_000,)
CORES = 2  # that the reproduction of executors divides
WORKERS = (0, 4)  # of the trainings whose resources are compared; 0 where a document does not say

Row = dict[str, Any]  # source, x, series and value
Sides = dict[str, Evidence]  # the published records, and those measured here


@dataclass(frozen=True)
class RatioChart:
    """A figure: what is on its axes, and its points."""

    name: str
    title: str
    about: str
    x: str
    y: str
    rows: Sequence[Row]
    numeric_x: bool = True
    connected: bool = True  # whether a line connects the points of a series


def ratio_charts(name: str, records: Sequence[Record]) -> list[RatioChart]:
    """The figures of a reproduction for which there are points."""
    known = published(name) if name in with_figures() else []
    sides = {PUBLISHED: Evidence(known), HERE: Evidence(records)}
    return [drawing for draw in DRAWN.get(name, ()) if (drawing := draw(sides)).rows]


def _points(own: Evidence, x: str, series: Callable[[Record], str]) -> dict[tuple[Any, str], float]:
    """Training times by a key and a series, in the order of the key."""
    good = sorted((record for record in own.good if record.train_s), key=lambda record: field_of(record, x))
    return {(field_of(record, x), series(record)): record.train_s or 0.0 for record in good}


def _relative(points: dict[tuple[Any, str], float], first: Any, faster: bool = False) -> Iterator[Row]:
    """Values relative to that of one x in the same series; with `faster`, how many times as fast."""
    for (x, series), value in points.items():
        if base := points.get((first, series)):
            yield {"x": x, "series": series, "value": round(base / value if faster else value / base, 4)}


def _data(record: Record) -> str:
    """Small or large data, as both the documents and the reproductions have them."""
    large = record.workload in LARGE_WORKLOADS or record.params.get("train_rows") in LARGE_ROWS
    return f"{record.engine}, {'large' if large else 'small'} data"


def _alone(own: Evidence) -> Evidence:
    """Single machines that have names."""
    return own.where(lambda record: bool(record.params.get("machine")) and record.workers <= 1)


def _machines(sides: Sides) -> RatioChart:
    rows = []
    for source, own in sides.items():
        rows += [{**row, "source": source} for row in _relative(_points(_alone(own), "machine", _data), "m4.xlarge")]
    about = "Training time on each machine, as a multiple of that on m4.xlarge (Figure 1 of 002)."
    return RatioChart(
        "machines", "Which machine", about, "machine", "times m4.xlarge", rows, numeric_x=False, connected=False
    )


def _sizes(key: str, title: str, about: str) -> Callable[[Sides], RatioChart]:
    def draw(sides: Sides) -> RatioChart:
        rows = []
        for source, own in sides.items():
            there = _alone(own).of(engine="spark-mllib").where(lambda record: "large" in _data(record)).good
            base = next((record.train_s for record in there if record.params["machine"] == "m4.xlarge"), None)
            for record in there if base else []:
                value = round((record.train_s or 0.0) / (base or 1.0), 4)
                rows.append({"source": source, "x": field_of(record, key), "series": "spark-mllib", "value": value})
        return RatioChart(key, title, about, key.replace("_gb", " in GB"), "times m4.xlarge", rows, connected=False)

    return draw


def _clusters(sides: Sides) -> RatioChart:
    rows = []
    for source, own in sides.items():
        alike = own.of(engine="spark-mllib").where(
            lambda record: (
                record.study == "clusters" or (record.kind == PUBLISHED and record.params.get("machine") == "m4.xlarge")
            )
        )
        rows += [{**row, "source": source} for row in _relative(_points(alike, "workers", _data), 1, faster=True)]
    about = "How many times as fast as one node MLlib trains on several (Figure 4 of 002)."
    return RatioChart("clusters", "How many nodes", about, "nodes", "times as fast as one", rows)


def _batches(sides: Sides) -> RatioChart:
    def series(record: Record) -> str:
        return record.mode if record.kind == PUBLISHED else f"{record.mode}, {record.workload}"

    rows = []
    for source, own in sides.items():
        good = sorted((record for record in own.good if record.train_s), key=rows_of_a_worker)
        points = {(rows_of_a_worker(record), series(record)): record.train_s or 0.0 for record in good}
        rows += [{**row, "source": source} for row in _relative(points, 1)]
    about = "Training time by the rows of a batch, as a part of that with single rows (the table of 003, section 4)."
    return RatioChart("batches", "How large a batch", about, "rows of a batch", "times single rows", rows)


def _by_epochs(sides: Sides, value: Callable[[Record], float | None]) -> list[Row]:
    """A figure of every division of the cores, by epochs."""
    rows = []
    for source, own in sides.items():
        for record in sorted(own.good, key=lambda record: record.params["epochs"]):
            at, crowded = value(record), record.kind != PUBLISHED and record.workers * record.cores > CORES
            if at is not None and not crowded:
                series = f"{record.engine}, {record.workers} x {record.cores:g} cores"
                rows.append({"source": source, "x": record.params["epochs"], "series": series, "value": at})
    return rows


def _times(sides: Sides) -> RatioChart:
    """Times by epochs, each against the shortest with the fewest on the same side."""
    rows = []
    every = _by_epochs(sides, lambda record: record.train_s)
    for source in sides:
        own = [row for row in every if row["source"] == source]
        few = min((row["x"] for row in own), default=None)
        least = min((row["value"] for row in own if row["x"] == few), default=None)
        rows += [{**row, "value": round(row["value"] / least, 3)} for row in own if least]
    about = "Computation time by epochs, as a multiple of the shortest with ten (Tables 1 to 6 of 004)."
    return RatioChart("times", "How long", about, "epochs", "times the shortest", rows)


def _accuracies(sides: Sides) -> RatioChart:
    rows = _by_epochs(sides, lambda record: record.test_accuracy)
    return RatioChart(
        "accuracy", "How accurate", "Accuracy by epochs (Tables 1 to 6 of 004).", "epochs", "accuracy", rows
    )


RESOURCES: dict[str, Callable[[Record], float | None]] = {
    "CPU": lambda record: record.training.get("cpu_share"),
    "network": lambda record: record.training.get("network_bytes_per_s") or record.counts.get("network_read_m"),
}


def _resources(sides: Sides) -> RatioChart:
    rows = []
    for source, own in sides.items():
        calm = own.calm.where(lambda record: record.workers in WORKERS)
        for what, figure in RESOURCES.items():
            try:
                sync, other = (calm.of(mode=mode).value(figure, what) for mode in ("sync", "async"))
            except EvidenceMissing:
                continue
            rows.append({"source": source, "x": what, "series": "async", "value": round(other / sync, 3)})
    about = "What asynchronous training uses, as a multiple of what synchronous training does (003, section 3)."
    return RatioChart(
        "resources", "Which resource", about, "resource", "times sync", rows, numeric_x=False, connected=False
    )


BY_CORES = _sizes("cores", "Do cores pay", "MLlib's training time on the large data by cores (Figure 2 of 002).")
BY_MEMORY = _sizes("memory_gb", "Does memory pay", "The same by memory (Figure 3 of 002).")
DRAWN: dict[str, Sequence[Callable[[Sides], RatioChart]]] = {
    "machines-and-clusters": (_machines, BY_CORES, BY_MEMORY, _clusters),
    "batch-size": (_batches,),
    "executors": (_times, _accuracies),
    "sync-async": (_resources,),
}
