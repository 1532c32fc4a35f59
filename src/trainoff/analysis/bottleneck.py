"""How the time of a trial was spent: by workers, by nodes and by start-up, and what bounded the training."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainoff.analysis.format import percent, seconds, size
from trainoff.analysis.groups import SettingGroup
from trainoff.analysis.statistics import median_of
from trainoff.records import Record
from trainoff.study.machines import GIB

BUSY = 0.9  # share of the CPUs, or of a GPU, from which nothing else could have made the training faster
TIMES = ("computing_s", "communicating_s", "waiting_s", "feeding_s")
MEANINGS = {  # of a share, by the kind of bottleneck
    "CPU": "of its CPUs busy",
    "computing": "of the workers' time",
    "network": "of the workers' time spent on calls and transfers",
    "feed": "of the workers' time spent waiting for rows",
    "wait": "of the workers' time spent waiting",
    "garbage": "of the workers' time spent on collecting it",
    "memory": "of the time something waited for memory",
    "disk": "of the time something waited for storage",
    "GPU": "of the training its GPU was busy",
    "idle": "of them idle; why is not on record",
}


@dataclass(frozen=True)
class WorkerTimes:
    """Shares of the training time, as the mean of all workers."""

    computing: float
    communicating: float | None  # None if it cannot be distinguished from waiting
    waiting: float
    fed: float | None = None  # waiting for rows, in engines that push them to the workers


def worker_times(record: Record) -> WorkerTimes | None:
    """Return how the workers of one trial spent its training; None if that is not on record."""
    train, parts = record.train_s, record.breakdowns
    if not train or "waiting_s" not in parts:
        return None
    means = {name: statistics.fmean(part.values()) / train for name, part in parts.items() if name in TIMES and part}
    communicating = means["communicating_s"] if any(parts.get("communicating_s", {}).values()) else None
    return WorkerTimes(means["computing_s"], communicating, means["waiting_s"], means.get("feeding_s"))


@dataclass(frozen=True)
class Bound:
    """What bounded a training, and the share that shows it."""

    kind: str  # of MEANINGS
    share: float

    def __str__(self) -> str:
        kind = "not bound by its CPUs" if self.kind == "idle" else f"{self.kind}-bound"
        return f"{kind} ({_whole(self.share)} {MEANINGS[self.kind]})"


def bound(record: Record) -> Bound | None:
    """Return what bounded the training: the CPUs if all are busy, else what the workers spent most of their time on."""
    times, busy = worker_times(record), record.training.get("cpu_share")
    if times is None or busy is None:
        return None
    if busy >= BUSY:
        return Bound("CPU", busy)
    shares = {
        "computing": times.computing,
        "network": times.communicating or 0.0,
        "feed": times.fed or 0.0,
        "wait": times.waiting,
    }
    largest = max(shares, key=shares.__getitem__)
    return Bound(largest, shares[largest])


def staleness(record: Record) -> tuple[float, int] | None:
    """Return how many updates by others the gradients had missed: on average, and at most."""
    histogram = {int(missed): count for missed, count in record.breakdowns.get("staleness", {}).items()}
    if not histogram:
        return None
    total = sum(histogram.values())
    return sum(missed * count for missed, count in histogram.items()) / total, max(histogram)


def worker_lines(groups: Sequence[SettingGroup]) -> list[tuple[str, list[str]]]:
    """Return what the workers of every distributed setting that ended well did, as a name and the parts of a line."""
    known = [(group, times) for group in groups if group.good and (times := worker_times(group.good[0]))]
    return [(group.name, _worker_parts(group.good[0], times)) for group, times in known]


def _worker_parts(record: Record, times: WorkerTimes) -> list[str]:
    shares = {
        "computing": times.computing,
        "communicating": times.communicating,
        "waiting for rows": times.fed,
        "waiting": times.waiting,
    }
    parts = [f"{name} {_whole(share)}" for name, share in shares.items() if share is not None]
    waited, train = record.breakdowns["waiting_s"], record.train_s or 1.0
    most, least = max(waited, key=waited.__getitem__), min(waited, key=waited.__getitem__)
    if waited[most] - waited[least] >= train / 10:
        parts.append(f"{most} waited {_whole(waited[most] / train)} and {least} {_whole(waited[least] / train)}")
    if stale := staleness(record):
        parts.append(f"gradients missed {stale[0]:.1f} updates, at most {stale[1]}")
    if rate := record.training.get("network_bytes_per_s"):
        parts.append(f"{size(rate)}/s")
    if found := bound(record):
        parts.append(str(found))
    return parts


def resource_lines(record: Record) -> list[str]:
    """Return what a training used, as lines: the machine first, then role by role."""
    found = record.training
    if not found:
        return []
    machine = [f"CPUs {_whole(found['cpu_share'])} busy"]
    machine += [f"{name} {found[name]:g}" for name in ("load", "runnable") if name in found]
    if "memory_share" in found:
        machine.append(f"memory {percent(round(found['memory_share'], 3))} of the machine's")
    if "network_bytes_per_s" in found:
        machine.append(f"network {size(found['network_bytes_per_s'])}/s")
    return [", ".join(machine), *(_role(record, role, cores) for role, cores in found["cpu_cores_by_role"].items())]


def _role(record: Record, role: str, cores: float) -> str:
    traffic = record.network_bytes_by_role.get(role)
    memory = record.peak_memory_bytes_by_role.get(role)
    moved = f", sent {size(traffic['sent'])} and received {size(traffic['received'])} in all" if traffic else ""
    return f"{role}: {cores:.2f} cores, at most {size(memory)} of memory{moved}"


def bound_sentences(groups: Sequence[SettingGroup]) -> list[str]:
    """Return what bounded each engine and mode, a sentence for each workload; settings with faults do not count."""
    found: dict[str, dict[str, list[Bound]]] = {}
    for group in groups:
        first = group.first
        if first.workers > 1 and group.good and not first.params.get("fault") and (held := bound(group.good[0])):
            found.setdefault(first.workload, {}).setdefault(f"{first.engine} {first.mode}", []).append(held)
    return [
        f"On {workload}, {'; '.join(_bound_clause(name, bounds) for name, bounds in modes.items())}."
        for workload, modes in found.items()
        if len(modes) > 1
    ]


def _bound_clause(name: str, found: Sequence[Bound]) -> str:
    common = Counter(each.kind for each in found).most_common(1)[0][0]
    shares = [each.share for each in found if each.kind == common]
    low, high = _whole(min(shares)), _whole(max(shares))
    return f"{name} is {common}-bound ({low if low == high else f'{low} to {high}'} {MEANINGS[common]})"


def _whole(share: float) -> str:
    return percent(round(share, 2))


IMPORTANT = 0.2  # of the training; what takes less does not bound it
COLLECTING = ("gc_s", "python_gc_s")  # garbage collection, of the JVM and of Python
STALLS = {"memory": "memory_pressure", "disk": "io_pressure"}


def bottleneck(record: Record) -> Bound | None:
    """Return what bounded the training, and the share that shows it; None if nothing is known.

    First comes what makes everything else wait: memory, storage, garbage collection, a busy GPU. Then busy CPUs, or
    what the workers did. If an engine does not record that, CPUs that are not busy are idle for an unknown reason.
    """
    stalls = [Bound(kind, record.noise.get(name) or 0.0) for kind, name in STALLS.items()]
    if record.train_s:
        collecting_s = sum(record.counts.get(name, 0.0) for name in COLLECTING)
        stalls.append(Bound("garbage", collecting_s / record.train_s / record.workers))
    longest = max(stalls, key=lambda stall: stall.share)
    if longest.share >= IMPORTANT:
        return longest
    if record.counts.get("gpu_busy", 0.0) >= BUSY:
        return Bound("GPU", record.counts["gpu_busy"])
    busy = record.training.get("cpu_share")
    if (found := bound(record)) or busy is None:
        return found
    return Bound("CPU", busy) if busy >= BUSY else Bound("idle", 1 - busy)


def bottleneck_sentence(record: Record) -> str | None:
    """Return what bounded a trial, in one sentence; a trial that ran out of memory was bounded by memory."""
    if record.status == "out-of-memory":
        return f"{record.engine} was memory-bound: {record.reason}."
    found = bottleneck(record)
    return f"In {seconds(record.train_s)} of training {record.engine} was {found}." if found else None


START = ("import", "cluster_start", "compile")
ROWS = ("data_load", "ship")
MOST_NAMED = 3  # settings in the sentence on start-up


@dataclass(frozen=True)
class TimeSplit:
    """Median seconds of a setting's trials, by what they were spent on; None for what the setting does not do."""

    start: float  # programs, the cluster, compilers
    rows: float  # reading the rows, and moving them to the workers
    feed: float | None  # waiting for rows while training, in engines that push them
    training: float  # without feed
    test: float
    end: float

    @property
    def whole(self) -> float:
        return self.start + self.rows + (self.feed or 0.0) + self.training + self.test + self.end


def time_split(group: SettingGroup) -> TimeSplit | None:
    """Return how the time of a setting was spent; None if nothing is known."""
    phases = group.phases_s()
    if not phases:
        return None
    waited = (record.breakdowns.get("feeding_s") for record in group.good or group.records)
    feed = median_of(statistics.fmean(by_worker.values()) for by_worker in waited if by_worker)
    start, rows = (sum(phases.get(name, 0.0) for name in names) for names in (START, ROWS))
    training = max(0.0, phases.get("train", 0.0) - (feed or 0.0))
    return TimeSplit(start, rows, feed, training, phases.get("test", 0.0), phases.get("teardown", 0.0))


def start_costs(groups: Sequence[SettingGroup]) -> list[str]:
    """Return a sentence on the distributed settings that took longer to start than to train."""
    distributed = [group for group in groups if group.good and group.first.mode != "single"]
    known = [(group, found) for group in distributed if (found := time_split(group))]
    slow = [(group, found) for group, found in known if found.start > found.training + (found.feed or 0.0)]
    if not slow:
        return []
    clauses = []
    for group, found in slow[:MOST_NAMED]:
        feeding = f", {seconds(found.feed)} feeding" if found.feed else ""
        clauses.append(
            f"{group.name} spent {seconds(found.start)} starting{feeding} and {seconds(found.training)} training"
        )
    others = len(slow) - MOST_NAMED
    more = f"; {others} more started longer than {'it' if others == 1 else 'they'} trained" if others > 0 else ""
    return [f"{'; '.join(clauses)}{more}: with so little work, starting dominates."]


def oversubscription(record: Record) -> str | None:
    """Return what a trial requested beyond what the machine has: cores, or memory of its nodes; None if all fits."""
    if not record.oversubscribed:
        return None
    if record.cluster != "lab":
        return f"asked for {record.workers * record.cores:g} cores and had {record.environment.get('cpus')}"
    asked = sum(node["memory_gb"] or 0 for node in record.nodes) * GIB
    return f"gave its nodes {size(asked)} of memory together and had {size(record.environment.get('memory_bytes'))}"


HEADINGS = ("node", "cores", "used", "throttled", "memory", "at most", "link", "sent", "received")


def node_rows(record: Record) -> list[list[str]]:
    """Return a row of cells for every node: what it had, and what it used while the trial trained."""
    rows = []
    for node in record.nodes:
        training, memory, link = node["training"], node["memory_gb"], node["bandwidth_mbit"]
        row = [
            node["name"],
            f"{node['cores']:g}",
            _whole(training["cpu_s"] / training["seconds"] / node["cores"]) if training else "-",
            seconds(training.get("throttled_s")),
            "unlimited" if memory is None else size(round(memory * GIB)),
            size(node["peak_memory_bytes"]),
            "unlimited" if link is None else f"{link:g} Mbit/s",
            size(training.get("sent_bytes")),
            size(training.get("received_bytes")),
        ]
        rows.append(row)
    return rows


def node_lines(record: Record) -> list[str]:
    """Return the rows as a table of text, its headings first; empty without emulated nodes."""
    rows = node_rows(record)
    if not rows:
        return []
    every = [list(HEADINGS), *rows]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    return [" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in every]
