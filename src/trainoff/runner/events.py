"""The events of a trial, one class each, and the state that they add up to.

Any process of a trial writes events as JSON lines into one pipe (`engines/shared/watch.py`). The runner reads each line
with `read_event` and applies it to the trial's `TrialState`. docs/records.md lists the kinds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec
from msgspec import UNSET, Struct, UnsetType

from trainoff.engines.shared.watch import PHASES

PAUSES = "snapshots"  # bytes that travel while the clock stands are booked apart from the phase
MACHINE = "machine"  # the role of the samples of the whole machine


class Event(Struct, tag_field="kind", kw_only=True, forbid_unknown_fields=False):
    """Something that a process of the trial said, and when, by the monotonic clock."""

    t: float


class PhaseEvent(Event, tag="phase"):
    """A phase begins."""

    name: str
    process_cpu_s: float | None = None
    network_bytes: int | None = None


class ExpectedEvent(Event, tag="expected"):
    """How many samples the whole training will see."""

    samples: int


class ProgressEvent(Event, tag="progress"):
    """How far the training is: the heartbeat."""

    step: int
    samples_seen: int
    loss: float | None


class SnapshotEvent(Event, tag="snapshot"):
    """A snapshot of the weights lies in a file."""

    step: int
    samples_seen: int
    train_s: float
    loss: float | None
    file: str


class PauseEvent(Event, tag="pause"):
    """How long the clock stood for the snapshot before."""

    seconds: float
    network_bytes: int | None = None


class CountEvent(Event, tag="count"):
    """A figure of the engine's own."""

    name: str
    value: float


class NoteEvent(Event, tag="note"):
    """A fact of the engine's own."""

    name: str
    text: str


class BreakdownEvent(Event, tag="breakdown"):
    """One part of a figure that has parts."""

    name: str
    part: str
    value: float


class ObjectiveEvent(Event, tag="objective"):
    """A training loss that became known only afterwards."""

    step: int
    samples_seen: int
    train_s: float
    loss: float


class TaskEvent(Event, tag="task"):
    """A task of a worker, in seconds since the training began."""

    worker: str
    start_s: float
    end_s: float


class PageEvent(Event, tag="page"):
    """There is a page to look at while the trial runs."""

    name: str


class LostEvent(Event, tag="lost"):
    """A process was lost, and samples must be seen again."""

    role: str
    samples: int
    ago_s: float

    @property
    def noticed(self) -> float:
        """Return when the loss was noticed; it may be reported later."""
        return self.t - self.ago_s


class WorkerFailedEvent(Event, tag="worker-failed"):
    """A worker failed, and how its log or its traceback ends."""

    role: str
    exit: int | None
    tail: str


class WorkerLogEvent(Event, tag="worker-log"):
    """The end of a failed worker's log, where its failure has the traceback."""

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
    """The engine did everything that it should."""


class FaultEvent(Event, tag="fault"):
    """A fault was injected, or why it was not."""

    action: str
    node: int
    processes: int
    why: str | None


class HealedEvent(Event, tag="healed"):
    """A fault is over."""

    action: str
    node: int


class OverMemoryEvent(Event, tag="over-memory"):
    """A role used more memory than it may."""

    role: str
    bytes: int
    limit: int | None


class SampleEvent(Event, tag="sample"):
    """What a role has used so far, or what the whole machine is doing (role `machine`)."""

    tick: float  # when all samples of this moment were taken
    role: str
    processes: int | UnsetType = UNSET
    threads: int | UnsetType = UNSET
    user_s: float = 0.0
    system_s: float = 0.0
    rss: int | UnsetType = UNSET
    pss: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    switches: int | UnsetType = UNSET
    sent_bytes: int = 0
    received_bytes: int = 0
    host: str | UnsetType = UNSET  # of a role on another host
    load: float = 0.0
    busy_s: float = 0.0
    steal_s: float = 0.0
    runnable: int | None = None
    pressure_cpu_s: float | None = None
    pressure_memory_s: float | None = None
    pressure_io_s: float | None = None
    network_bytes: int | None = None

    def row(self) -> dict[str, Any]:
        """Return the figures that a sample of this kind has, for the series of the record."""
        every = {name: getattr(self, name) for name in (OF_MACHINE if self.role == MACHINE else OF_ROLE)}
        return {"role": self.role, **{name: value for name, value in every.items() if value is not UNSET}}


OF_MACHINE = ("load", "busy_s", "steal_s", "runnable", "pressure_cpu_s", "pressure_memory_s", "pressure_io_s",
              "network_bytes")  # fmt: skip
OF_ROLE = ("processes", "threads", "user_s", "system_s", "rss", "pss", "read_bytes", "write_bytes", "switches",
           "sent_bytes", "received_bytes", "host")  # fmt: skip


class HostSampleEvent(Event, tag="host-sample"):
    """What a role on another host has used so far."""

    host: str
    role: str
    user_s: float
    system_s: float
    pss: int
    switches: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    rss: int = 0
    processes: int = 0
    threads: int = 0

    def at(self, tick: float) -> SampleEvent:
        """Return it as a sample of a moment: it counts until the host sends the next."""
        return SampleEvent(tick=tick, **msgspec.structs.asdict(self))


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
    """The CPU time of a role, at the end."""

    role: str
    cpu_s: float


class HostSpentEvent(Event, tag="host-spent"):
    """The CPU time of a role on another host, at the end."""

    host: str
    role: str
    cpu_s: float


class HostUsageEvent(Event, tag="host-usage"):
    """The CPU time of all processes on another host, by its kernel's account."""

    host: str
    cpu_s: float


class UsageEvent(Event, tag="usage"):
    """The kernel's account of the whole process tree: the last event."""

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


class NotAnEvent(ValueError):
    """A line that is no event, or of a kind or with fields that nothing here knows."""


def read_event(line: bytes | str) -> AnyEvent:
    """Read one line of the pipe."""
    try:
        return make_event(json.loads(line))
    except (ValueError, RecursionError) as error:  # a line may be anything, a thousand brackets too
        raise NotAnEvent(str(error)) from error


def make_event(fields: Any) -> AnyEvent:
    """Make an event of the values in a line. Python's reader, unlike msgspec's, knows numbers that are not finite."""
    try:
        event: AnyEvent = msgspec.convert(fields, AnyEvent)
    except msgspec.ValidationError as error:
        raise NotAnEvent(str(error)) from error
    return event


MOST_UNREADABLE, LONGEST_UNREADABLE = 3, 200  # lines that are kept, and bytes of each


@dataclass
class TrialState:
    """The events of one trial, added up."""

    start: float  # when the runner started it; all times are of the monotonic clock
    phase: str = "import"
    expected: int = 0  # samples that the whole training will see; 0 until that is known
    reached: str = "import"  # the last phase before teardown; imports are over when the training has begun
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
    fault_at_s: float = 0.0  # how long the training had lasted then
    fault_step: int = 0
    healed: HealedEvent | None = None
    lost: list[LostEvent] = field(default_factory=list)
    heartbeats: list[tuple[float, int]] = field(default_factory=list)  # time of each progress event, samples seen
    snapshots: list[SnapshotEvent] = field(default_factory=list)
    objectives: list[ObjectiveEvent] = field(default_factory=list)
    samples: list[SampleEvent] = field(default_factory=list)
    latest: dict[str, SampleEvent] = field(default_factory=dict)  # the newest sample of each role
    nodes: dict[int, list[NodeEvent]] = field(default_factory=lambda: defaultdict(list))  # the samples of each
    counts: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)  # what there is to look at, and its address
    breakdowns: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    timeline: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))  # tasks by worker
    spent: dict[str, float] = field(default_factory=dict)  # CPU seconds by role, at the end
    host_spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # the same, on other hosts
    host_s: float = 0.0  # the CPU seconds of all processes on other hosts, by their kernels' accounts
    _hosts: dict[tuple[str, str], HostSampleEvent] = field(default_factory=dict)  # the newest ones
    unreadable: list[str] = field(default_factory=list)  # lines that were no events, the first of them
    unreadable_lines: int = 0
    last_progress: float = 0.0
    train_start: float | None = None
    train_end: float | None = None
    _phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _since: float = 0.0
    _travelled: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _travelled_before: int = 0

    def __post_init__(self) -> None:
        self._since = self.last_progress = self.start

    def apply(self, event: AnyEvent) -> None:
        """Take in one event."""
        match event:
            case PhaseEvent():
                self._enter(event)
            case ExpectedEvent():
                self.expected = event.samples
            case ProgressEvent():
                self._progress(event)
            case SnapshotEvent():
                self.snapshots.append(event)
                self._progress(event)
            case PauseEvent():
                self._pause(event)
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
                self._fault(event)
            case HealedEvent():
                self.healed = event
                self.last_progress = event.t
            case OverMemoryEvent():
                self.over_memory = event
            case SampleEvent():
                self._sample(event)
            case HostSampleEvent():
                self._hosts[event.host, event.role] = event
                self.latest[event.role] = event.at(event.t)
            case NodeEvent():
                self.nodes[event.node].append(event)
            case SpentEvent():
                self.spent[event.role] = event.cpu_s
            case HostSpentEvent():
                self.host_spent[event.role] += event.cpu_s
            case HostUsageEvent():
                self.host_s += event.cpu_s
            case UsageEvent():
                self.usage = event
            case PageEvent():
                pass  # the runner opens it
            case _:
                assert_never(event)

    def could_not_read(self, line: bytes) -> None:
        """Note a line that is no event: the record says so."""
        self.unreadable_lines += 1
        if len(self.unreadable) < MOST_UNREADABLE:
            self.unreadable.append(line[:LONGEST_UNREADABLE].decode(errors="replace"))

    def phases_s(self, end: float) -> dict[str, float | None]:
        """Seconds in each phase, without the pauses for snapshots; None where the trial never came to it."""
        spent = dict(self._phases)
        spent[self.phase] = spent.get(self.phase, 0.0) + end - self._since
        if "train" in spent:
            spent["train"] -= self.paused_s
        return {name: spent.get(name) for name in PHASES}

    def cpu_at(self, role: str | None = None, *, here: bool = False) -> list[tuple[float, float]]:
        """The CPU seconds of the trial (or of one role, or `here` alone) as a series of (time, seconds so far)."""
        series: dict[float, float] = defaultdict(float)
        for row in self.samples:
            if row.role != MACHINE and role in (None, row.role) and not (here and row.host is not UNSET):
                series[row.tick] += row.user_s + row.system_s
        return sorted(series.items())

    def now(self, *names: str) -> float:
        """The sum of some figures over all roles at the newest sample."""
        rows = [row for role, row in self.latest.items() if role != MACHINE]
        return float(sum(getattr(row, name) for row in rows for name in names))

    def network_now(self) -> int | None:
        """Bytes that have travelled inside the trial so far."""
        machine = self.latest.get(MACHINE)
        return machine.network_bytes if machine else None

    def network_bytes_by_phase(self, total: int | None) -> dict[str, int]:
        """The bytes that travelled in each phase; the last one has the rest of the total."""
        if total is None:
            return {}
        last = {self.phase: self._travelled.get(self.phase, 0) + total - self._travelled_before}
        return {name: count for name, count in {**self._travelled, **last}.items() if count > 0}

    def _enter(self, event: PhaseEvent) -> None:
        if event.network_bytes is not None:
            self._travelled[self.phase] += event.network_bytes - self._travelled_before
            self._travelled_before = event.network_bytes
        if self.phase == "train":
            self.train_end = event.t
        self._phases[self.phase] += event.t - self._since
        self.phase, self._since = event.name, event.t
        between = self.phase == "teardown" or (self.phase == "import" and self.train_start is not None)
        self.reached = self.reached if between else self.phase
        self.last_progress = event.t
        if self.phase == "train" and self.train_start is None:
            self.train_start = event.t

    def _progress(self, event: ProgressEvent | SnapshotEvent) -> None:
        self.step, self.samples_seen, self.loss = event.step, event.samples_seen, event.loss
        self.last_progress = event.t
        self.heartbeats.append((event.t, event.samples_seen))

    def _pause(self, event: PauseEvent) -> None:
        self.paused_s += event.seconds
        if event.network_bytes:
            self._travelled[PAUSES] += event.network_bytes
            self._travelled[self.phase] -= event.network_bytes

    def _sample(self, event: SampleEvent) -> None:
        self.samples.append(event)
        self.latest[event.role] = event
        if event.role == MACHINE:  # the last of its moment
            self.samples += [sample.at(event.tick) for sample in self._hosts.values()]

    def _fault(self, event: FaultEvent) -> None:
        """A fault is not held against the trial: its patience begins anew."""
        self.fault, self.fault_step = event, self.step
        self.fault_at_s = event.t - (self.train_start or event.t) - self.paused_s
        self.last_progress = event.t
