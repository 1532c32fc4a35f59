"""Claims about machines and clusters (002): MLlib and TensorFlow on types of machines, MLlib on 1 to 17 nodes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

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
    times_text,
)

MLLIB, TENSORFLOW = "spark-mllib", "tensorflow"
BYTES = 4  # of a number in the rows
SIZES = ("xlarge", "4xlarge")  # the ends of a series
HALF, QUARTER_MORE = 0.5, 1.25
SHARES = "here a node is 0.4 core, so that even the small data is work enough to share"


def machines(seen: Evidence, **wanted: object) -> Evidence:
    """The trials on machines by their names."""
    return seen.of(study="machines", **wanted)


def clusters(seen: Evidence, **wanted: object) -> Evidence:
    """The trials on clusters."""
    return seen.of(study="clusters", **wanted)


def small_and_large(seen: Evidence) -> tuple[int, int]:
    """How many rows the small data has, and the large."""
    sizes = list(seen.by("train_rows"))
    if len(sizes) < 2:
        raise EvidenceMissing("there are no records of two sizes of data")
    return sizes[0], sizes[-1]


def times(own: Evidence, key: str) -> dict[Any, float]:
    """The training times of what ended well, by a key."""
    return {value: part.train_s(f"{key} {value}") for value, part in own.by(key).items() if part.good}


def _of_sizes(seen: Evidence, engine: str) -> list[tuple[float, float, float]]:
    """Cores, memory and training time of an engine on the large data, machine by machine."""
    large = small_and_large(machines(seen))[1]
    own = machines(seen, engine=engine, train_rows=large).good
    return [(r.cores, r.memory_gb, r.train_s) for r in own if r.memory_gb is not None and r.train_s is not None]


def _line(seen: Evidence, column: int, what: str) -> FittedLine:
    """MLlib's training time against the cores or the memory of a machine."""
    points = _of_sizes(seen, MLLIB)
    line = fit_line([point[column] for point in points], [point[2] for point in points])
    if line is None:
        raise EvidenceMissing(f"fewer than three sizes of machines trained MLlib, too few for a line against {what}")
    return line


@check
def tensorflow_faster_than_mllib(seen: Evidence) -> ClaimFinding:
    """On every machine and both data."""
    own = machines(seen)
    pairs = []
    for record in own.of(engine=MLLIB).good:
        beside = own.of(engine=TENSORFLOW, machine=record.params["machine"], train_rows=record.params["train_rows"])
        pairs.append((record.train_s or 0.0) / beside.train_s("TensorFlow on the same machine"))
    if not pairs:
        raise EvidenceMissing("no trial of MLlib ended well")
    told = f"TensorFlow {min(pairs):.1f} to {times_text(max(pairs))} faster, in {len(pairs)} pairs"
    reason = "ten epochs of TensorFlow's against three iterations of MLlib's; to an accuracy the difference is larger"
    return finding(all(larger(pair, 1.0) for pair in pairs), told, reason)


@check
def no_mllib_cluster_beats_one_tensorflow(seen: Evidence) -> ClaimFinding:
    """MLlib at its best number of nodes against TensorFlow on one machine with four times a node's cores."""
    large = small_and_large(clusters(seen))[1]
    best = times(clusters(seen, train_rows=large), "workers")
    if not best:
        raise EvidenceMissing("no trial of MLlib on a cluster ended well")
    nodes = min(best, key=best.__getitem__)
    alone = machines(seen, engine=TENSORFLOW, machine="m4.xlarge", train_rows=large).train_s("TensorFlow on m4.xlarge")
    told = (
        f"MLlib at best {seconds(best[nodes])} on {count(nodes, 'node')}, TensorFlow {seconds(alone)} on one m4.xlarge"
    )
    return finding(larger(best[nodes], alone), told)


@check
def more_cores_train_faster(seen: Evidence) -> ClaimFinding:
    """From xlarge to 4xlarge of the same series."""
    gains = {}
    for engine in (MLLIB, TENSORFLOW):
        for rows in machines(seen).by("train_rows"):
            own = {name: machines(seen, engine=engine, machine=f"m4.{name}", train_rows=rows) for name in SIZES}
            gains[engine, rows] = own["xlarge"].train_s("m4.xlarge") / own["4xlarge"].train_s("m4.4xlarge")
    if not gains:
        raise EvidenceMissing("nothing trained on m4.xlarge and on m4.4xlarge")
    told = ", ".join(f"{engine} on {rows:,} rows {times_text(gain)}" for (engine, rows), gain in gains.items())
    return finding(all(larger(gain, 1.0) for gain in gains.values()), f"from m4.xlarge to m4.4xlarge: {told}")


@check
def train_time_goes_with_cores(seen: Evidence) -> ClaimFinding:
    """The straight line of the document; a time that falls as 1/cores never lies on one, so the slope counts, too."""
    line = _line(seen, 0, "cores")
    return finding(line.r_squared > HALF and line.slope < 0, f"R² {line.r_squared:.3f} over {line.n} machines")


@check
def memory_explains_less_than_cores(seen: Evidence) -> ClaimFinding:
    cores, memory = _line(seen, 0, "cores"), _line(seen, 1, "memory")
    told = f"R² {memory.r_squared:.3f} for memory, {cores.r_squared:.3f} for cores"
    return finding(memory.r_squared < cores.r_squared, told, "memory goes with cores from machine to machine")


@check
def extra_memory_brings_nothing(seen: Evidence) -> ClaimFinding:
    """Machines of equal cores, the one with most memory against the one with least that trained.

    One run each, so that they count together: single ones differ by a tenth either way.
    """
    told, gains = [], []
    for engine in (MLLIB, TENSORFLOW):
        for own in _by_cores(_of_sizes(seen, engine)):
            least, most = min(own), max(own)
            gains.append(least[1] / most[1])
            told.append(f"{engine} {least[0]:g} to {most[0]:g} GB: {seconds(least[1])} to {seconds(most[1])}")
    if not told:
        raise EvidenceMissing("no two machines of equal cores trained")
    gain = statistics.geometric_mean(gains)
    return finding(not larger(gain, 1.0), "; ".join(told), f"{times_text(gain)} as fast with more memory, on average")


def _by_cores(points: Sequence[tuple[float, float, float]]) -> list[list[tuple[float, float]]]:
    """Memory and time of machines with the same cores, where there are several."""
    every: dict[float, list[tuple[float, float]]] = {}
    for cores, memory, took in points:
        every.setdefault(cores, []).append((memory, took))
    return [own for own in every.values() if len(own) > 1]


@check
def least_memory_runs_out_on_large_data(seen: Evidence) -> ClaimFinding:
    large = small_and_large(machines(seen))[1]
    own = sorted(machines(seen, engine=MLLIB, train_rows=large).records, key=lambda record: record.memory_gb or 0.0)
    if not own:
        raise EvidenceMissing("no trial of MLlib on the large data ran")
    out = [record for record in own if record.status == "out-of-memory"]
    told = ", ".join(f"{record.params['machine']} with {record.memory_gb:g} GB: {record.reason}" for record in out)
    smallest_only = [record.trial_id for record in out] == [own[0].trial_id]
    return finding(smallest_only, told or "none ran out of memory", "the least memory, and no other, is too little")


@check
def equal_cores_train_alike_whatever_the_type(seen: Evidence) -> ClaimFinding:
    worst = []
    for engine in (MLLIB, TENSORFLOW):
        for own in _by_cores(_of_sizes(seen, engine)):
            worst.append(max(took for _, took in own) / min(took for _, took in own))
    if not worst:
        raise EvidenceMissing("no two machines of equal cores trained")
    told = f"machines of equal cores differ by at most {times_text(max(worst))}"
    return finding(max(worst) < QUARTER_MORE, told, "emulated nodes share one processor, so only size can differ")


def _nodes(seen: Evidence, large: bool) -> dict[int, float]:
    """MLlib's training time by the number of nodes."""
    rows = small_and_large(clusters(seen))[large]
    own = {int(str(nodes)): took for nodes, took in times(clusters(seen, train_rows=rows), "workers").items()}
    if len(own) < 2 or 1 not in own:
        raise EvidenceMissing(f"MLlib ended well on {len(own)} numbers of nodes with {rows:,} rows, too few to compare")
    return own


def _speeds(own: dict[int, float]) -> str:
    gains = ", ".join(f"{nodes} nodes {times_text(own[1] / took)}" for nodes, took in own.items() if nodes > 1)
    return f"against one node: {gains}"


@check
def mllib_gains_nothing_on_small_data(seen: Evidence) -> ClaimFinding:
    own = _nodes(seen, large=False)
    return finding(not larger(own[1], min(own.values())), _speeds(own), SHARES)


@check
def mllib_gains_on_large_data_up_to_five_nodes(seen: Evidence) -> ClaimFinding:
    own = _nodes(seen, large=True)
    three, five = own.get(3), own.get(5)
    if three is None or five is None:
        raise EvidenceMissing("MLlib did not end well on 3 and 5 nodes")
    return finding(larger(own[1], three) and larger(three, five), _speeds(own))


@check
def mllib_gains_nothing_beyond_five_nodes(seen: Evidence) -> ClaimFinding:
    own = _nodes(seen, large=True)
    if 5 not in own or 17 not in own:
        raise EvidenceMissing("17 nodes of this size do not fit on this machine")
    told = f"17 nodes against 5: {times_text(own[5] / own[17])}"
    return finding(not larger(own[5], own[17]), told, "the document left the number of partitions as its file gave it")


@check
def mllib_does_not_scale_at_all(seen: Evidence) -> ClaimFinding:
    own = _nodes(seen, large=True)
    return finding(not larger(own[1], min(own.values())), _speeds(own), "with a partition for every core it does")


@check
def best_number_of_nodes_grows_with_data(seen: Evidence) -> ClaimFinding:
    best = {large: min(own, key=own.__getitem__) for large in (False, True) for own in [_nodes(seen, large)]}
    return finding(
        best[True] > best[False], f"{count(best[False], 'node')} for the small data, {best[True]} for the large"
    )


@check
def four_times_the_rows_take_longer(seen: Evidence) -> ClaimFinding:
    gains: dict[str, list[float]] = {}
    small, large = small_and_large(machines(seen))
    for record in machines(seen, train_rows=large).good:
        beside = machines(seen, engine=record.engine, machine=record.params["machine"], train_rows=small)
        if beside.good and record.train_s:
            gains.setdefault(record.engine, []).append(record.train_s / beside.train_s("the small data"))
    if set(gains) != {MLLIB, TENSORFLOW}:
        raise EvidenceMissing("not both engines trained on both data")
    told = ", ".join(f"{engine} {min(own):.1f} to {times_text(max(own))}" for engine, own in gains.items())
    return finding(all(larger(one, 1.0) for own in gains.values() for one in own), f"as long: {told}")


@check
def training_needs_more_memory_than_the_data(seen: Evidence) -> ClaimFinding:
    large = small_and_large(machines(seen))[1]
    told, more = [], []
    for engine in (MLLIB, TENSORFLOW):
        own = machines(seen, engine=engine, train_rows=large)
        peak = own.value(lambda record: record.peak_memory_bytes, f"the memory of {engine}")
        data = own.value(_data_bytes, "the size of the data")
        told.append(f"{engine} {size(peak)}, {times_text(peak / data)} the data")
        more.append(larger(peak, data))
    return finding(all(more), ", ".join(told))


def _data_bytes(record: Record) -> float | None:
    rows, features = record.params.get("train_rows"), record.model.get("sizes", [0])[0]
    return rows * features * BYTES if rows and features else None


@check
def speed_up_needs_large_data(seen: Evidence) -> ClaimFinding:
    """004 says it of any cluster; MLlib's is the one that ran on small and large data."""
    gain = {large: own[1] / min(own.values()) for large in (False, True) for own in [_nodes(seen, large)]}
    told = f"at best {times_text(gain[False])} on the small data, {times_text(gain[True])} on the large"
    verdict = larger(gain[True], gain[False])
    return finding(verdict, told, "alike" if alike(gain[True], gain[False]) else "")
