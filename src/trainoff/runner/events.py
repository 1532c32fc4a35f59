"""The events of a trial, one class for each kind, and the state that they add up to.

Every process of a trial writes events as JSON lines into one pipe (`engines/shared/watch.py`). The runner reads each
line with `read_event` and applies the event to the trial's `TrialState`. docs/records.md lists the kinds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec
from msgspec import Struct

from trainoff.engines.shared.watch import PHASES

PAUSES = "snapshots"  # the network bytes of pauses are counted apart from those of the phase
MACHINE = "machine"  # the role of the samples of the whole machine


class Event(Struct, tag_field="kind", kw_only=True):
    """What a process of the trial reports, and when by the monotonic clock."""

    t: float


class PhaseEvent(Event, tag="phase"):
    """A phase begins."""

    name: str
    process_cpu_s: float | None = None
    network_bytes: int | None = None


class ExpectedEvent(Event, tag="expected"):
    """The number of samples that the whole training will see."""

    samples: int


class ProgressEvent(Event, tag="progress"):
    """How far the training is."""

    step: int
    samples_seen: int
    loss: float | None


class SnapshotEvent(Event, tag="snapshot"):
    """A snapshot of the weights has been written to a file."""

    step: int
    samples_seen: int
    train_s: float
    loss: float | None
    file: str


class PauseEvent(Event, tag="pause"):
    """How long the clock was stopped for the last snapshot."""

    seconds: float
    network_bytes: int | None = None


class CountEvent(Event, tag="count"):
    """A figure that only this engine reports."""

    name: str
    value: float


class NoteEvent(Event, tag="note"):
    """A fact that only this engine reports."""

    name: str
    text: str


class BreakdownEvent(Event, tag="breakdown"):
    """One part of a figure that has several, such as one per worker."""

    name: str
    part: str
    value: float


class ObjectiveEvent(Event, tag="objective"):
    """A training loss that is reported after its step."""

    step: int
    samples_seen: int
    train_s: float
    loss: float


class TaskEvent(Event, tag="task"):
    """A task of a worker; times are seconds since the training began."""

    worker: str
    start_s: float
    end_s: float


class PageEvent(Event, tag="page"):
    """A web page that is served while the trial runs, such as Spark's."""

    name: str


class LostEvent(Event, tag="lost"):
    """A process was lost, and its samples must be repeated."""

    role: str
    samples: int
    ago_s: float

    @property
    def noticed(self) -> float:
        """Return when the loss was noticed, which may be before it was reported."""
        return self.t - self.ago_s


class WorkerFailedEvent(Event, tag="worker-failed"):
    """A worker failed; `tail` is the end of its log or traceback."""

    role: str
    exit: int | None
    tail: str


class WorkerLogEvent(Event, tag="worker-log"):
    """The end of a failed worker's log, if its `WorkerFailedEvent` has the traceback."""

    role: str
    tail: str | None


class ErrorEvent(Event, tag="error"):
    """The trial process failed."""

    phase: str | None
    status: str
    reason: str
    traceback: str | None
    unfinished: bool


class DoneEvent(Event, tag="done"):
    """The engine has finished."""


class FaultEvent(Event, tag="fault"):
    """A fault was injected, or could not be (`why`)."""

    action: str
    node: int
    processes: int
    why: str | None


class HealedEvent(Event, tag="healed"):
    """A fault is over."""

    action: str
    node: int


class OverMemoryEvent(Event, tag="over-memory"):
    """A role exceeded its memory limit."""

    role: str
    bytes: int
    limit: int | None


class SampleEvent(Event, tag="sample"):
    """What a role has used so far; with the role `machine`, the state of the whole machine."""

    tick: float  # the time that all rows of one sample share
    role: str
    host: str | None = None  # of a role on another host
    processes: int = 0
    threads: int = 0
    user_s: float = 0.0
    system_s: float = 0.0
    rss: int = 0
    pss: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    switches: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    load: float = 0.0
    busy_s: float = 0.0
    steal_s: float = 0.0
    runnable: int | None = None
    pressure_cpu_s: float | None = None
    pressure_memory_s: float | None = None
    pressure_io_s: float | None = None
    network_bytes: int | None = None

    def row(self) -> dict[str, Any]:
        """Return the figures that this kind of sample has, for samples.parquet."""
        names = OF_MACHINE if self.role == MACHINE else OF_ROLE if self.host is None else (*OF_ROLE, "host")
        return {"role": self.role, **{name: getattr(self, name) for name in names}}


OF_MACHINE = ("load", "busy_s", "steal_s", "runnable", "pressure_cpu_s", "pressure_memory_s", "pressure_io_s",
              "network_bytes")  # fmt: skip
OF_ROLE = ("processes", "threads", "user_s", "system_s", "rss", "pss", "read_bytes", "write_bytes", "switches",
           "sent_bytes", "received_bytes")  # fmt: skip


class HostSampleEvent(SampleEvent, tag="host-sample", kw_only=True):
    """What a role on another host has used so far: valid until the host sends the next one."""

    tick: float = 0.0  # set when it becomes part of a sample
    host: str


class NodeEvent(Event, tag="node"):
    """What an emulated node has used so far."""

    tick: float
    node: int
    cpu_s: float
    throttled_s: float
    memory_bytes: int
    peak_memory_bytes: int
    oom_kills: int
    sent_bytes: int
    received_bytes: int


class SpentEvent(Event, tag="spent"):
    """The CPU time of a role at the end."""

    role: str
    cpu_s: float


class HostSpentEvent(Event, tag="host-spent"):
    """The CPU time of a role on another host at the end."""

    host: str
    role: str
    cpu_s: float


class HostUsageEvent(Event, tag="host-usage"):
    """The CPU time of all processes on another host, by its kernel's count."""

    host: str
    cpu_s: float


class UsageEvent(Event, tag="usage"):
    """The kernel's count for the whole process tree: the last event of a trial."""

    user_s: float
    system_s: float
    switches: int
    largest_rss: int
    orphans: int
    sampler_s: float
    exit: int | None


AnyEvent = (
    PhaseEvent | ExpectedEvent | ProgressEvent | SnapshotEvent | PauseEvent | CountEvent | NoteEvent | BreakdownEvent
    | ObjectiveEvent | TaskEvent | PageEvent | LostEvent | WorkerFailedEvent | WorkerLogEvent | ErrorEvent | DoneEvent
    | FaultEvent | HealedEvent | OverMemoryEvent | SampleEvent | HostSampleEvent | NodeEvent | SpentEvent
    | HostSpentEvent | HostUsageEvent | UsageEvent
)  # fmt: skip


def read_event(line: bytes | str) -> AnyEvent:
    """Read one line of the pipe; raise ValueError or RecursionError if it is no event.

    Python's reader, unlike msgspec's, accepts numbers that are not finite.
    """
    event: AnyEvent = msgspec.convert(json.loads(line), AnyEvent)
    return event


@dataclass
class TrialState:
    """What the events of one trial add up to so far."""

    start: float  # when the runner started the trial; all times are of the monotonic clock
    phase: str = "import"
    expected: int = 0  # samples that the whole training will see; 0: not known yet
    reached: str = "import"  # the last phase before teardown; an import during training does not count
    step: int = 0
    samples_seen: int = 0
    loss: float | None = None
    done: bool = False
    paused_s: float = 0.0
    error: ErrorEvent | None = None
    worker_failed: WorkerFailedEvent | None = None
    worker_log: WorkerLogEvent | None = None
    over_memory: OverMemoryEvent | None = None
    usage: UsageEvent | None = None
    fault: FaultEvent | None = None
    fault_at_s: float = 0.0  # seconds of training before the fault
    fault_step: int = 0
    healed: HealedEvent | None = None
    lost: list[LostEvent] = field(default_factory=list)
    progress_times: list[tuple[float, int]] = field(default_factory=list)  # with the samples seen
    snapshots: list[SnapshotEvent] = field(default_factory=list)
    objectives: list[ObjectiveEvent] = field(default_factory=list)
    samples: list[SampleEvent] = field(default_factory=list)
    latest: dict[str, SampleEvent] = field(default_factory=dict)  # the newest sample of each role
    nodes: dict[int, list[NodeEvent]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)  # name and address
    breakdowns: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    timeline: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))  # tasks by worker
    cpu_s: dict[str, float] = field(default_factory=dict)  # by role, at the end
    host_cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # the same on other hosts
    host_total_s: float = 0.0  # CPU seconds of all processes on other hosts, counted by their kernels
    _hosts: dict[tuple[str, str], HostSampleEvent] = field(default_factory=dict)  # the newest of each
    unreadable: list[str] = field(default_factory=list)  # the first lines that are no events
    unreadable_lines: int = 0
    last_progress: float = 0.0
    train_start: float | None = None
    train_end: float | None = None
    _phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _since: float = 0.0
    _network: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _network_before: int = 0

    def __post_init__(self) -> None:
        self._since = self.last_progress = self.start

    def apply(self, event: AnyEvent) -> None:
        """Update the state by one event."""
        match event:
            case PhaseEvent():
                self._enter(event)
            case ExpectedEvent():
                self.expected = event.samples
            case ProgressEvent() | SnapshotEvent():
                self.step, self.samples_seen, self.loss = event.step, event.samples_seen, event.loss
                self.last_progress = event.t
                self.progress_times.append((event.t, event.samples_seen))
                if isinstance(event, SnapshotEvent):
                    self.snapshots.append(event)
            case PauseEvent():
                self.paused_s += event.seconds
                if event.network_bytes:
                    self._network[PAUSES] += event.network_bytes
                    self._network[self.phase] -= event.network_bytes
            case CountEvent():
                self.counts[event.name] = event.value
            case NoteEvent():
                self.notes[event.name] = event.text
            case BreakdownEvent():
                self.breakdowns[event.name][event.part] = event.value
            case ObjectiveEvent():
                self.objectives.append(event)
            case TaskEvent():
                self.timeline[event.worker].append([event.start_s, event.end_s])
            case LostEvent():
                self.lost.append(event)
            case WorkerFailedEvent():
                self.worker_failed = event
            case WorkerLogEvent():
                self.worker_log = event
            case ErrorEvent():
                self.error = event
            case DoneEvent():
                self.done = True
            case FaultEvent():
                self.fault, self.fault_step = event, self.step
                self.fault_at_s = event.t - (self.train_start or event.t) - self.paused_s
                self.last_progress = event.t  # the time until a stall is counted anew
            case HealedEvent():
                self.healed = event
                self.last_progress = event.t
            case OverMemoryEvent():
                self.over_memory = event
            case HostSampleEvent():
                self._hosts[event.host, event.role] = self.latest[event.role] = event
            case SampleEvent():
                self.samples.append(event)
                self.latest[event.role] = event
                if event.role == MACHINE:  # the last row of a sample
                    self.samples += [msgspec.structs.replace(row, tick=event.tick) for row in self._hosts.values()]
            case NodeEvent():
                self.nodes[event.node].append(event)
            case SpentEvent():
                self.cpu_s[event.role] = event.cpu_s
            case HostSpentEvent():
                self.host_cpu_s[event.role] += event.cpu_s
            case HostUsageEvent():
                self.host_total_s += event.cpu_s
            case UsageEvent():
                self.usage = event
            case PageEvent():
                pass  # TrialProcess forwards it
            case _:
                assert_never(event)

    def add_unreadable(self, line: bytes) -> None:
        """Count a line that is no event, and keep the beginning of the first three for a note in the record."""
        self.unreadable_lines += 1
        if self.unreadable_lines <= 3:
            self.unreadable.append(line[:200].decode(errors="replace"))

    def phases_s(self, end: float) -> dict[str, float | None]:
        """Return the seconds in each phase, without pauses for snapshots; None for a phase that was not entered."""
        spent = dict(self._phases)
        spent[self.phase] = spent.get(self.phase, 0.0) + end - self._since
        if "train" in spent:
            spent["train"] -= self.paused_s
        return {name: spent.get(name) for name in PHASES}

    def cpu_series(self, role: str | None = None, *, here: bool = False) -> list[tuple[float, float]]:
        """Return (time, CPU seconds so far) of all roles or one, on all hosts or only `here`."""
        series: dict[float, float] = defaultdict(float)
        for row in self.samples:
            if row.role != MACHINE and role in (None, row.role) and not (here and row.host):
                series[row.tick] += row.user_s + row.system_s
        return sorted(series.items())

    @property
    def training_span(self) -> tuple[float, float] | None:
        """Return when the training began and ended; None if it did not come to an end."""
        start, end = self.train_start, self.train_end
        return None if start is None or end is None or end <= start else (start, end)

    def current(self, *names: str) -> float:
        """Return the sum of some figures over all roles, by the newest sample of each."""
        rows = [row for role, row in self.latest.items() if role != MACHINE]
        return float(sum(getattr(row, name) for row in rows for name in names))

    def current_network_bytes(self) -> int | None:
        """Return the bytes sent inside the trial's network so far; None without such a network."""
        machine = self.latest.get(MACHINE)
        return machine.network_bytes if machine else None

    def network_bytes_by_phase(self, total: int | None) -> dict[str, int]:
        """Return the network bytes of each phase; the current phase has the rest of the total."""
        if total is None:
            return {}
        last = {self.phase: self._network.get(self.phase, 0) + total - self._network_before}
        return {name: count for name, count in {**self._network, **last}.items() if count > 0}

    def _enter(self, event: PhaseEvent) -> None:
        if event.network_bytes is not None:
            self._network[self.phase] += event.network_bytes - self._network_before
            self._network_before = event.network_bytes
        if self.phase == "train":
            self.train_end = event.t
        self._phases[self.phase] += event.t - self._since
        self.phase, self._since = event.name, event.t
        between = self.phase == "teardown" or (self.phase == "import" and self.train_start is not None)
        self.reached = self.reached if between else self.phase
        self.last_progress = event.t
        if self.phase == "train" and self.train_start is None:
            self.train_start = event.t


def growth(series: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """Return by how much a counter grew between two times, interpolating a series of (time, value)."""
    import numpy as np

    if not series:
        return 0.0
    times, values = zip(*series, strict=True)
    first, last = np.interp([start, end], times, values)
    return float(last - first)
