"""Where the time of a trial went: workers, emulated nodes, start-up, and what bounded the training."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainoff.analysis.format import percent, seconds, size
from trainoff.analysis.groups import SettingGroup
from trainoff.records import Record
from trainoff.study.machines import GIB

BUSY = 0.9  # of the CPUs: nothing else could have made it faster
TIMES = ("computing_s", "communicating_s", "waiting_s", "feeding_s")
WHAT = {
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
    communicating: float | None  # None where it cannot be told from waiting
    waiting: float
    fed: float | None = None  # waiting for rows, where somebody pushes them


def worker_times(record: Record) -> WorkerTimes | None:
    """How the workers of one trial spent its training; None where that is not known."""
    train, parts = record.train_s, record.breakdowns
    if not train or "waiting_s" not in parts:
        return None
    told = any(parts.get("communicating_s", {}).values())
    means = {name: statistics.fmean(part.values()) / train for name, part in parts.items() if name in TIMES and part}
    talking = means["communicating_s"] if told else None
    return WorkerTimes(means["computing_s"], talking, means["waiting_s"], means.get("feeding_s"))


@dataclass(frozen=True)
class Bound:
    """What held a training up, and the share that says so."""

    kind: str  # of WHAT
    share: float

    def __str__(self) -> str:
        kind = "not bound by its CPUs" if self.kind == "idle" else f"{self.kind}-bound"
        return f"{kind} ({_whole(self.share)} {WHAT[self.kind]})"


def bound(record: Record) -> Bound | None:
    """What held the training up: the CPUs where all are busy, else what the workers spent most of their time on."""
    done, busy = worker_times(record), record.training.get("cpu_share")
    if done is None or busy is None:
        return None
    if busy >= BUSY:
        return Bound("CPU", busy)
    shares = {
        "computing": done.computing,
        "network": done.communicating or 0.0,
        "feed": done.fed or 0.0,
        "wait": done.waiting,
    }
    most = max(shares, key=shares.__getitem__)
    return Bound(most, shares[most])


def staleness(record: Record) -> tuple[float, int] | None:
    """How many updates by others the gradients had missed: on average, and at most."""
    histogram = {int(missed): count for missed, count in record.breakdowns.get("staleness", {}).items()}
    if not histogram:
        return None
    total = sum(histogram.values())
    return sum(missed * count for missed, count in histogram.items()) / total, max(histogram)


def worker_lines(groups: Sequence[SettingGroup]) -> list[tuple[str, list[str]]]:
    """For every distributed setting that ended well what its workers did, as a name and the parts of a line."""
    found = []
    for group in groups:
        if group.good and (done := worker_times(group.good[0])):
            found.append((group.name, [*_shares(done), *_by_worker(group.good[0]), *_rest(group.good[0])]))
    return found


def _shares(done: WorkerTimes) -> list[str]:
    talked = [] if done.communicating is None else [f"communicating {_whole(done.communicating)}"]
    fed = [] if done.fed is None else [f"waiting for rows {_whole(done.fed)}"]
    return [f"computing {_whole(done.computing)}", *talked, *fed, f"waiting {_whole(done.waiting)}"]


def _by_worker(record: Record) -> list[str]:
    """Who waited most, where workers were not alike."""
    waited = record.breakdowns["waiting_s"]
    most, least = max(waited, key=waited.__getitem__), min(waited, key=waited.__getitem__)
    train = record.train_s or 1.0
    if waited[most] - waited[least] < train / 10:
        return []
    return [f"{most} waited {_whole(waited[most] / train)} and {least} {_whole(waited[least] / train)}"]


def _rest(record: Record) -> list[str]:
    told = []
    if stale := staleness(record):
        told.append(f"gradients missed {stale[0]:.1f} updates, at most {stale[1]}")
    if rate := record.training.get("network_bytes_per_s"):
        told.append(f"{size(rate)}/s")
    if held := bound(record):
        told.append(str(held))
    return told


def resource_lines(record: Record) -> list[str]:
    """What a training used, as lines: the machine first, then role by role."""
    found = record.training
    if not found:
        return []
    whole = [f"CPUs {_whole(found['cpu_share'])} busy"]
    whole += [f"{name} {found[name]:g}" for name in ("load", "runnable") if name in found]
    if "memory_share" in found:
        whole.append(f"memory {percent(round(found['memory_share'], 3))} of the machine's")
    if "network_bytes_per_s" in found:
        whole.append(f"network {size(found['network_bytes_per_s'])}/s")
    return [", ".join(whole), *(_role(record, role, cores) for role, cores in found["cpu_cores_by_role"].items())]


def _role(record: Record, role: str, cores: float) -> str:
    traffic = record.network_bytes_by_role.get(role)
    memory = record.peak_memory_bytes_by_role.get(role)
    moved = f", sent {size(traffic['sent'])} and received {size(traffic['received'])} in all" if traffic else ""
    return f"{role}: {cores:.2f} cores, at most {size(memory)} of memory{moved}"


def bound_sentences(groups: Sequence[SettingGroup]) -> list[str]:
    """What each engine and mode was bound by, workload by workload, in one sentence each; faults left aside."""
    found: dict[str, dict[str, list[Bound]]] = {}
    for group in groups:
        first = group.first
        if first.workers > 1 and group.good and not first.params.get("fault") and (held := bound(group.good[0])):
            found.setdefault(first.workload, {}).setdefault(f"{first.engine} {first.mode}", []).append(held)
    return [_bound_sentence(workload, modes) for workload, modes in found.items() if len(modes) > 1]


def _bound_sentence(workload: str, modes: Mapping[str, Sequence[Bound]]) -> str:
    told = []
    for name, held in modes.items():
        common = Counter(each.kind for each in held).most_common(1)[0][0]
        shares = [each.share for each in held if each.kind == common]
        low, high = _whole(min(shares)), _whole(max(shares))
        told.append(f"{name} is {common}-bound ({low if low == high else f'{low} to {high}'} {WHAT[common]})")
    return f"On {workload}, {'; '.join(told)}."


def _whole(share: float) -> str:
    return percent(round(share, 2))


MUCH = 0.2  # of the training: what takes less bounds nothing
COLLECTING = ("gc_s", "python_gc_s")  # garbage collection, of the Java machine and of Python
STALLS = {"memory": "memory_pressure", "disk": "io_pressure"}


def bottleneck(record: Record) -> Bound | None:
    """What held the training up, and the share that says so; None where nothing is known.

    First what makes everything else wait: memory, storage, garbage collection, a busy GPU. Then busy CPUs, or what the
    workers did. Where an engine does not tell that, CPUs that are not busy are idle for a reason that is not known.
    """
    stalled = [found for found in (*_stalls(record), *_garbage(record)) if found.share >= MUCH]
    if stalled:
        return max(stalled, key=lambda found: found.share)
    if record.counts.get("gpu_busy", 0.0) >= BUSY:
        return Bound("GPU", record.counts["gpu_busy"])
    busy = record.training.get("cpu_share")
    if (held := bound(record)) or busy is None:
        return held
    return Bound("CPU", busy) if busy >= BUSY else Bound("idle", 1 - busy)


def _stalls(record: Record) -> list[Bound]:
    return [Bound(kind, record.noise.get(name) or 0.0) for kind, name in STALLS.items()]


def _garbage(record: Record) -> list[Bound]:
    spent = sum(record.counts.get(name, 0.0) for name in COLLECTING)
    return [Bound("garbage", spent / record.train_s / record.workers)] if record.train_s else []


def bottleneck_sentence(record: Record) -> str | None:
    """What bounded a trial, in one sentence; what ran out of memory was bounded by that."""
    if record.status == "out-of-memory":
        return f"{record.engine} was memory-bound: {record.reason}."
    held = bottleneck(record)
    return f"In {seconds(record.train_s)} of training {record.engine} was {held}." if held else None


START = ("import", "cluster_start", "compile")
ROWS = ("data_load", "ship")
MOST_TOLD = 3  # settings whose start is told in words


@dataclass(frozen=True)
class TimeSplit:
    """Seconds of a setting's trials, each the median: `None` for what it does not do."""

    start: float  # programs, the cluster, compilers
    rows: float  # reading the rows, and bringing them to where they are needed
    feed: float | None  # waiting for rows while training, where somebody pushes them
    training: float  # without that
    test: float
    end: float

    @property
    def whole(self) -> float:
        return self.start + self.rows + (self.feed or 0.0) + self.training + self.test + self.end


def time_split(group: SettingGroup) -> TimeSplit | None:
    """Where the time of a setting went; None if nothing is known."""
    phases, feed = group.phases_s(), group.median(feed_s)
    if not phases:
        return None
    start, rows = (sum(phases.get(name, 0.0) for name in names) for names in (START, ROWS))
    training = max(0.0, phases.get("train", 0.0) - (feed or 0.0))
    return TimeSplit(start, rows, feed, training, phases.get("test", 0.0), phases.get("teardown", 0.0))


def feed_s(record: Record) -> float | None:
    """How long the workers waited for rows that were pushed to them, on average."""
    waited = record.breakdowns.get("feeding_s")
    return statistics.fmean(waited.values()) if waited else None


def start_costs(groups: Sequence[SettingGroup]) -> list[str]:
    """For the distributed settings that took longer to start than to train, how long, in one sentence."""
    distributed = [group for group in groups if group.good and group.first.mode != "single"]
    told = [(group, found) for group in distributed if (found := time_split(group))]
    slow = [(group, found) for group, found in told if found.start > found.training + (found.feed or 0.0)]
    if not slow:
        return []
    parts = []
    for group, found in slow[:MOST_TOLD]:
        feeding = f", {seconds(found.feed)} feeding" if found.feed else ""
        parts.append(
            f"{group.name} spent {seconds(found.start)} starting{feeding} and {seconds(found.training)} training"
        )
    others = len(slow) - MOST_TOLD
    more = f"; {others} more started longer than {'it' if others == 1 else 'they'} trained" if others > 0 else ""
    return [f"{'; '.join(parts)}{more}: for this little work, to start is what costs."]


HEADINGS = ("node", "cores", "used", "throttled", "memory", "at most", "link", "sent", "received")


def oversubscription(record: Record) -> str | None:
    """What a trial asked for beyond what the machine has: cores, or memory of its nodes; None if it all fits."""
    if not record.oversubscribed:
        return None
    if record.cluster != "lab":
        return f"asked for {record.workers * record.cores:g} cores and had {record.environment.get('cpus')}"
    asked = sum(node["memory_gb"] or 0 for node in record.nodes) * GIB
    return f"gave its nodes {size(asked)} of memory together and had {size(record.environment.get('memory_bytes'))}"


def node_rows(record: Record) -> list[list[str]]:
    """A row of words for every node: what it had, and what it used while the trial trained."""
    return [_row(node) for node in record.nodes]


def _row(node: dict[str, Any]) -> list[str]:
    training, link = node["training"], node["bandwidth_mbit"]
    used = training["cpu_s"] / training["seconds"] / node["cores"] if training else None
    return [
        node["name"],
        f"{node['cores']:g}",
        "-" if used is None else percent(round(used, 2)),
        seconds(training.get("throttled_s")),
        "unlimited" if node["memory_gb"] is None else size(round(node["memory_gb"] * GIB)),
        size(node["peak_memory_bytes"]),
        "unlimited" if link is None else f"{link:g} Mbit/s",
        size(training.get("sent_bytes")),
        size(training.get("received_bytes")),
    ]


def node_lines(record: Record) -> list[str]:
    """The rows as a table of text, its headings first; none where there were no emulated nodes."""
    rows = node_rows(record)
    if not rows:
        return []
    every = [list(HEADINGS), *rows]
    widths = [max(len(row[place]) for row in every) for place in range(len(HEADINGS))]
    return [" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in every]
