"""The charts of a reproduction: published beside measured, as ratios, since seconds are not comparable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainoff.records import PUBLISHED, Record
from trainoff.reproductions.evidence import Evidence, EvidenceMissing, RecordValue, field_of, rows_of_a_worker
from trainoff.reproductions.published import names as published_names
from trainoff.reproductions.published import records as published_records

HERE = "measured here"
LARGE_WORKLOADS, LARGE_ROWS = ("mnist-large-mlp", "emnist-mlp"), (60_000,)
CORES = 2  # in all, in the reproduction of executors
WORKERS = (0, 4)  # of the trainings whose resources are compared; 0 if a document does not state it

Row = dict[str, Any]  # source, x, series and value
Sources = dict[str, Evidence]  # the published records, and those measured here


@dataclass(frozen=True)
class RatioChart:
    """A chart: its axes and points."""

    name: str
    title: str
    about: str
    x: str
    y: str
    rows: Sequence[Row]
    numeric_x: bool = True
    connected: bool = True  # whether a line connects the points of a series


def ratio_charts(name: str, records: Sequence[Record]) -> list[RatioChart]:
    """Return the charts of a reproduction that have points."""
    published = published_records(name) if name in published_names() else []
    sources = {PUBLISHED: Evidence(published), HERE: Evidence(records)}
    return [chart for draw in CHARTS.get(name, ()) if (chart := draw(sources)).rows]


def _relative_times(
    sources: Sources,
    select: Callable[[Evidence], Evidence],
    x: Callable[[Record], Any],
    series: Callable[[Record], str],
    first: Any,
    faster: bool = False,
) -> list[Row]:
    """Return training times relative to that of the first x in each series; with `faster`, how many times as fast."""
    rows = []
    for source, evidence in sources.items():
        good = sorted((record for record in select(evidence).good if record.train_s), key=x)
        points = {(x(record), series(record)): record.train_s or 0.0 for record in good}
        for (at, name), value in points.items():
            if base := points.get((first, name)):
                ratio = round(base / value if faster else value / base, 4)
                rows.append({"x": at, "series": name, "value": ratio, "source": source})
    return rows


def _data(record: Record) -> str:
    """Return the engine and the size of the data; the documents and the reproductions have small and large data."""
    large = record.workload in LARGE_WORKLOADS or record.params.get("train_rows") in LARGE_ROWS
    return f"{record.engine}, {'large' if large else 'small'} data"


def _single_machines(evidence: Evidence) -> Evidence:
    return evidence.filter(lambda record: bool(record.params.get("machine")) and record.workers <= 1)


def _machines(sources: Sources) -> RatioChart:
    rows = _relative_times(sources, _single_machines, lambda record: record.params["machine"], _data, "m4.xlarge")
    about = "Training time on each machine, as a multiple of that on m4.xlarge (Figure 1 of 002)."
    axes = "machine", "times m4.xlarge"
    return RatioChart("machines", "Which machine", about, *axes, rows, numeric_x=False, connected=False)


def _by_size(key: str, title: str, about: str) -> Callable[[Sources], RatioChart]:
    def draw(sources: Sources) -> RatioChart:
        rows = []
        for source, evidence in sources.items():
            mllib = _single_machines(evidence).select(engine="spark-mllib")
            good = [record for record in mllib.good if "large" in _data(record) and record.train_s]
            base = next((record.train_s for record in good if record.params["machine"] == "m4.xlarge"), None)
            for record in good if base else []:
                value = round((record.train_s or 0.0) / (base or 1.0), 4)
                rows.append({"source": source, "x": field_of(record, key), "series": "spark-mllib", "value": value})
        return RatioChart(key, title, about, key.replace("_gb", " in GB"), "times m4.xlarge", rows, connected=False)

    return draw


def _clusters(sources: Sources) -> RatioChart:
    def comparable(record: Record) -> bool:
        on_xlarge = record.kind == PUBLISHED and record.params.get("machine") == "m4.xlarge"
        return record.engine == "spark-mllib" and (record.study == "clusters" or on_xlarge)

    nodes = _relative_times(
        sources, lambda evidence: evidence.filter(comparable), lambda record: record.workers, _data, 1, faster=True
    )
    about = "How many times as fast as one node MLlib trains on several (Figure 4 of 002)."
    return RatioChart("clusters", "How many nodes", about, "nodes", "times as fast as one", nodes)


def _batches(sources: Sources) -> RatioChart:
    def series(record: Record) -> str:
        return record.mode if record.kind == PUBLISHED else f"{record.mode}, {record.workload}"

    rows = _relative_times(sources, lambda evidence: evidence, rows_of_a_worker, series, 1)
    about = "Training time by the rows of a batch, as a part of that with single rows (the table of 003, section 4)."
    return RatioChart("batches", "How large a batch", about, "rows of a batch", "times single rows", rows)


def _by_epochs(sources: Sources, value: RecordValue) -> Iterator[Row]:
    """Return a figure of every division of the cores, by epochs."""
    for source, evidence in sources.items():
        for record in sorted(evidence.good, key=lambda record: record.params["epochs"]):
            figure, crowded = value(record), record.kind != PUBLISHED and record.workers * record.cores > CORES
            if figure is not None and not crowded:
                series = f"{record.engine}, {record.workers} x {record.cores:g} cores"
                yield {"source": source, "x": record.params["epochs"], "series": series, "value": figure}


def _times(sources: Sources) -> RatioChart:
    """Chart times by epochs, as multiples of the shortest with the fewest epochs in the same source."""
    rows = []
    every = list(_by_epochs(sources, lambda record: record.train_s))
    for source in sources:
        found = [row for row in every if row["source"] == source]
        fewest = min((row["x"] for row in found), default=None)
        shortest = min((row["value"] for row in found if row["x"] == fewest), default=None)
        rows += [{**row, "value": round(row["value"] / shortest, 3)} for row in found if shortest]
    about = "Computation time by epochs, as a multiple of the shortest with ten (Tables 1 to 6 of 004)."
    return RatioChart("times", "How long", about, "epochs", "times the shortest", rows)


def _accuracies(sources: Sources) -> RatioChart:
    rows = list(_by_epochs(sources, lambda record: record.test_accuracy))
    about = "Accuracy by epochs (Tables 1 to 6 of 004)."
    return RatioChart("accuracy", "How accurate", about, "epochs", "accuracy", rows)


RESOURCES: dict[str, RecordValue] = {
    "CPU": lambda record: record.training.get("cpu_share"),
    "network": lambda record: record.training.get("network_bytes_per_s") or record.counts.get("network_read_m"),
}


def _resources(sources: Sources) -> RatioChart:
    rows = []
    for source, evidence in sources.items():
        calm = evidence.without_faults.filter(lambda record: record.workers in WORKERS)
        for what, figure in RESOURCES.items():
            try:
                sync, other = (calm.select(mode=mode).value(figure, what) for mode in ("sync", "async"))
            except EvidenceMissing:
                continue
            rows.append({"source": source, "x": what, "series": "async", "value": round(other / sync, 3)})
    about = "What asynchronous training uses, as a multiple of what synchronous training does (003, section 3)."
    axes = "resource", "times sync"
    return RatioChart("resources", "Which resource", about, *axes, rows, numeric_x=False, connected=False)


BY_CORES = _by_size("cores", "Do cores pay", "MLlib's training time on the large data by cores (Figure 2 of 002).")
BY_MEMORY = _by_size("memory_gb", "Does memory pay", "The same by memory (Figure 3 of 002).")
CHARTS: dict[str, Sequence[Callable[[Sources], RatioChart]]] = {
    "machines-and-clusters": (_machines, BY_CORES, BY_MEMORY, _clusters),
    "batch-size": (_batches,),
    "executors": (_times, _accuracies),
    "sync-async": (_resources,),
}
