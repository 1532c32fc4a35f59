"""Claims about machines and clusters (002): MLlib and TensorFlow on types of machines, MLlib on 1 to 17 nodes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from trainoff.analysis.correlation import FittedLine, fit_line
from trainoff.analysis.format import count, seconds, size
from trainoff.records import Record
from trainoff.reproductions.evidence import (
    ClaimFinding,
    Evidence,
    EvidenceMissing,
    alike,
    check,
    finding,
    larger,
    require,
    time_of,
    times_text,
)

MLLIB, TENSORFLOW = "spark-mllib", "tensorflow"
BYTES = 4  # of a number in the rows
HALF, QUARTER_MORE = 0.5, 1.25
SHARES = "here a node is 0.4 core, so that even the small data is work enough to share"


def _machines(evidence: Evidence, **wanted: object) -> Evidence:
    return evidence.select(study="machines", **wanted)


def _clusters(evidence: Evidence, **wanted: object) -> Evidence:
    return evidence.select(study="clusters", **wanted)


def _small_and_large(evidence: Evidence) -> tuple[int, int]:
    """Return the numbers of rows of the small and of the large data."""
    sizes = list(evidence.group_by("train_rows"))
    require(len(sizes) >= 2, "there are no records of two sizes of data")
    return sizes[0], sizes[-1]


def _of_sizes(evidence: Evidence, engine: str) -> list[tuple[float, float, float]]:
    """Return cores, memory and training time of an engine on the large data, machine by machine."""
    large = _small_and_large(_machines(evidence))[1]
    runs = _machines(evidence, engine=engine, train_rows=large).good
    return [(run.cores, run.memory_gb, run.train_s) for run in runs if run.memory_gb and run.train_s]


def _line(evidence: Evidence, column: int, what: str) -> FittedLine:
    """Fit a line to MLlib's training time against the cores or the memory of a machine."""
    points = _of_sizes(evidence, MLLIB)
    line = fit_line([point[column] for point in points], [point[2] for point in points])
    if line is None:
        raise EvidenceMissing(f"fewer than three sizes of machines trained MLlib, too few for a line against {what}")
    return line


@check
def tensorflow_faster_than_mllib(evidence: Evidence) -> ClaimFinding:
    """On every machine and both data."""
    runs = _machines(evidence)
    pairs = []
    for record in runs.select(engine=MLLIB).good:
        same = {key: record.params[key] for key in ("machine", "train_rows")}
        beside = runs.select(engine=TENSORFLOW, **same)
        pairs.append(time_of(record) / beside.train_s("TensorFlow on the same machine"))
    require(pairs, "no trial of MLlib ended well")
    text = f"TensorFlow {min(pairs):.1f} to {times_text(max(pairs))} faster, in {len(pairs)} pairs"
    reason = "ten epochs of TensorFlow's against three iterations of MLlib's; to an accuracy the difference is larger"
    return finding(all(larger(pair, 1.0) for pair in pairs), text, reason)


@check
def no_mllib_cluster_beats_one_tensorflow(evidence: Evidence) -> ClaimFinding:
    """MLlib at its best number of nodes against TensorFlow on one machine with four times a node's cores."""
    large = _small_and_large(_clusters(evidence))[1]
    best = _clusters(evidence, train_rows=large).train_times("workers")
    require(best, "no trial of MLlib on a cluster ended well")
    nodes = min(best, key=best.__getitem__)
    one = _machines(evidence, engine=TENSORFLOW, machine="m4.xlarge", train_rows=large)
    alone, shortest = one.train_s("TensorFlow on m4.xlarge"), best[nodes]
    text = f"MLlib at best {seconds(shortest)} on {count(nodes, 'node')}, TensorFlow {seconds(alone)} on one m4.xlarge"
    return finding(larger(shortest, alone), text)


@check
def more_cores_train_faster(evidence: Evidence) -> ClaimFinding:
    """From xlarge to 4xlarge of the same series."""
    gains = {}
    for engine in (MLLIB, TENSORFLOW):
        for rows in _machines(evidence).group_by("train_rows"):
            runs = _machines(evidence, engine=engine, train_rows=rows)
            small, large = (runs.select(machine=machine).train_s(machine) for machine in ("m4.xlarge", "m4.4xlarge"))
            gains[engine, rows] = small / large
    require(gains, "nothing trained on m4.xlarge and on m4.4xlarge")
    text = ", ".join(f"{engine} on {rows:,} rows {times_text(gain)}" for (engine, rows), gain in gains.items())
    return finding(all(larger(gain, 1.0) for gain in gains.values()), f"from m4.xlarge to m4.4xlarge: {text}")


@check
def train_time_goes_with_cores(evidence: Evidence) -> ClaimFinding:
    """The straight line of the document; a time that falls as 1/cores never lies on one, so the slope counts, too."""
    line = _line(evidence, 0, "cores")
    return finding(line.r_squared > HALF and line.slope < 0, f"R² {line.r_squared:.3f} over {line.n} machines")


@check
def memory_explains_less_than_cores(evidence: Evidence) -> ClaimFinding:
    cores, memory = _line(evidence, 0, "cores"), _line(evidence, 1, "memory")
    text = f"R² {memory.r_squared:.3f} for memory, {cores.r_squared:.3f} for cores"
    return finding(memory.r_squared < cores.r_squared, text, "memory grows with the cores from machine to machine")


@check
def extra_memory_brings_nothing(evidence: Evidence) -> ClaimFinding:
    """Of machines with equal cores, those with the most and with the least memory that trained are compared.

    There is one run of each, and single runs differ by a tenth either way, so the mean counts.
    """
    texts, gains = [], []
    for engine in (MLLIB, TENSORFLOW):
        for runs in _by_cores(_of_sizes(evidence, engine)):
            (small, slow), (large, fast) = min(runs), max(runs)
            gains.append(slow / fast)
            texts.append(f"{engine} {small:g} to {large:g} GB: {seconds(slow)} to {seconds(fast)}")
    require(texts, "no two machines of equal cores trained")
    gain = statistics.geometric_mean(gains)
    return finding(not larger(gain, 1.0), "; ".join(texts), f"{times_text(gain)} as fast with more memory, on average")


def _by_cores(points: Sequence[tuple[float, float, float]]) -> list[list[tuple[float, float]]]:
    """Return memory and time of machines with the same cores, if there are several."""
    every: dict[float, list[tuple[float, float]]] = {}
    for cores, memory, took in points:
        every.setdefault(cores, []).append((memory, took))
    return [runs for runs in every.values() if len(runs) > 1]


@check
def least_memory_runs_out_on_large_data(evidence: Evidence) -> ClaimFinding:
    large = _small_and_large(_machines(evidence))[1]
    records = _machines(evidence, engine=MLLIB, train_rows=large).records
    runs = sorted(records, key=lambda record: record.memory_gb or 0.0)
    require(runs, "no trial of MLlib on the large data ran")
    out = [record for record in runs if record.status == "out-of-memory"]
    text = ", ".join(f"{record.params['machine']} with {record.memory_gb:g} GB: {record.reason}" for record in out)
    smallest_only = [record.trial_id for record in out] == [runs[0].trial_id]
    return finding(smallest_only, text or "none ran out of memory", "only the smallest memory is too small")


@check
def equal_cores_train_alike_whatever_the_type(evidence: Evidence) -> ClaimFinding:
    families = [runs for engine in (MLLIB, TENSORFLOW) for runs in _by_cores(_of_sizes(evidence, engine))]
    require(families, "no two machines of equal cores trained")
    worst = max(max(took for _, took in runs) / min(took for _, took in runs) for runs in families)
    text = f"machines of equal cores differ by at most {times_text(worst)}"
    return finding(worst < QUARTER_MORE, text, "emulated nodes share one processor, so only size can differ")


def _nodes(evidence: Evidence, large: bool) -> dict[int, float]:
    rows = _small_and_large(_clusters(evidence))[large]
    times = _clusters(evidence, train_rows=rows).train_times("workers")
    few = f"MLlib ended well on {len(times)} numbers of nodes with {rows:,} rows, too few to compare"
    require(len(times) >= 2 and 1 in times, few)
    return times


def _speeds(times: dict[int, float]) -> str:
    gains = ", ".join(f"{nodes} nodes {times_text(times[1] / took)}" for nodes, took in times.items() if nodes > 1)
    return f"against one node: {gains}"


@check
def mllib_gains_nothing_on_small_data(evidence: Evidence) -> ClaimFinding:
    times = _nodes(evidence, large=False)
    return finding(not larger(times[1], min(times.values())), _speeds(times), SHARES)


@check
def mllib_gains_on_large_data_up_to_five_nodes(evidence: Evidence) -> ClaimFinding:
    times = _nodes(evidence, large=True)
    require({3, 5} <= times.keys(), "MLlib did not end well on 3 and 5 nodes")
    return finding(larger(times[1], times[3]) and larger(times[3], times[5]), _speeds(times))


@check
def mllib_gains_nothing_beyond_five_nodes(evidence: Evidence) -> ClaimFinding:
    times = _nodes(evidence, large=True)
    require(5 in times and 17 in times, "17 nodes of this size do not fit on this machine")
    text = f"17 nodes against 5: {times_text(times[5] / times[17])}"
    reason = "the document left the number of partitions as its file gave it"
    return finding(not larger(times[5], times[17]), text, reason)


@check
def mllib_does_not_scale_at_all(evidence: Evidence) -> ClaimFinding:
    times = _nodes(evidence, large=True)
    return finding(not larger(times[1], min(times.values())), _speeds(times), "with a partition for every core it does")


@check
def best_number_of_nodes_grows_with_data(evidence: Evidence) -> ClaimFinding:
    small, large = (min(times, key=times.__getitem__) for times in (_nodes(evidence, False), _nodes(evidence, True)))
    return finding(large > small, f"{count(small, 'node')} for the small data, {large} for the large")


@check
def four_times_the_rows_take_longer(evidence: Evidence) -> ClaimFinding:
    gains: dict[str, list[float]] = {}
    small, large = _small_and_large(_machines(evidence))
    for record in _machines(evidence, train_rows=large).good:
        beside = _machines(evidence, engine=record.engine, machine=record.params["machine"], train_rows=small)
        if beside.good and record.train_s:
            gains.setdefault(record.engine, []).append(record.train_s / beside.train_s("the small data"))
    require(set(gains) == {MLLIB, TENSORFLOW}, "not both engines trained on both data")
    text = ", ".join(f"{engine} {min(times):.1f} to {times_text(max(times))}" for engine, times in gains.items())
    return finding(all(larger(gain, 1.0) for times in gains.values() for gain in times), f"as long: {text}")


@check
def training_needs_more_memory_than_the_data(evidence: Evidence) -> ClaimFinding:
    def data_bytes(record: Record) -> float | None:
        rows, features = record.params.get("train_rows"), record.model.get("sizes", [0])[0]
        return rows * features * BYTES if rows and features else None

    large = _small_and_large(_machines(evidence))[1]
    texts, more = [], []
    for engine in (MLLIB, TENSORFLOW):
        runs = _machines(evidence, engine=engine, train_rows=large)
        peak = runs.value(lambda record: record.peak_memory_bytes, f"the memory of {engine}")
        data = runs.value(data_bytes, "the size of the data")
        texts.append(f"{engine} {size(peak)}, {times_text(peak / data)} the data")
        more.append(larger(peak, data))
    return finding(all(more), ", ".join(texts))


@check
def speed_up_needs_large_data(evidence: Evidence) -> ClaimFinding:
    """004 says it of any cluster; MLlib's is the one that ran on small and large data."""
    small, large = (times[1] / min(times.values()) for times in (_nodes(evidence, False), _nodes(evidence, True)))
    text = f"at best {times_text(small)} on the small data, {times_text(large)} on the large"
    return finding(larger(large, small), text, "alike" if alike(large, small) else "")
