"""What is known of a trial from its events, while it runs and afterwards."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from trainoff.engines.shared.watch import PHASES

Event = dict[str, Any]
PAUSES = "snapshots"  # what travels while the clock stands is booked apart from the phase


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
    error: Event | None = None
    worker_failed: Event | None = None
    worker_log: Event | None = None
    over_memory: Event | None = None
    usage: Event | None = None
    fault: Event | None = None  # with what the trial had come to
    healed: Event | None = None
    losses: list[Event] = field(default_factory=list)
    beats: list[tuple[float, int]] = field(default_factory=list)  # when progress was told, and the samples seen by then
    snapshots: list[Event] = field(default_factory=list)
    objectives: list[Event] = field(default_factory=list)
    samples: list[Event] = field(default_factory=list)
    latest: dict[str, Event] = field(default_factory=dict)  # the newest sample of each role
    nodes: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))  # samples of each emulated node
    counts: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)  # what there is to look at, and its address
    breakdowns: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    timeline: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))  # tasks by worker
    spent: dict[str, float] = field(default_factory=dict)  # CPU seconds by role, at the end
    host_spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # the same, on other hosts
    host_s: float = 0.0  # the CPU seconds of all processes on other hosts, by their kernels' accounts
    _hosts: dict[tuple[str, str], Event] = field(default_factory=dict)  # the newest sample of each host and role
    last_progress: float = 0.0
    train_start: float | None = None
    train_end: float | None = None
    _phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _since: float = 0.0
    _travelled: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _travelled_before: int = 0

    def __post_init__(self) -> None:
        self._since = self.last_progress = self.start

    def apply(self, event: Event) -> None:
        """Take in one event."""
        method = getattr(self, "_apply_" + event["kind"].replace("-", "_"), None)
        if method:
            method(event)

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
            if row["role"] != "machine" and role in (None, row["role"]) and not (here and "host" in row):
                series[row["tick"]] += row["user_s"] + row["system_s"]
        return sorted(series.items())

    def now(self, *names: str) -> float:
        """The sum of some figures over all roles at the newest sample."""
        rows = [row for role, row in self.latest.items() if role != "machine"]
        return float(sum(row[name] for row in rows for name in names))

    def network_now(self) -> int | None:
        """Bytes that have travelled inside the trial so far."""
        machine = self.latest.get("machine")
        return machine["network_bytes"] if machine else None

    def network_bytes_by_phase(self, total: int | None) -> dict[str, int]:
        """The bytes that travelled in each phase; the last one has the rest of the total."""
        if total is None:
            return {}
        last = {self.phase: self._travelled.get(self.phase, 0) + total - self._travelled_before}
        return {name: count for name, count in {**self._travelled, **last}.items() if count > 0}

    def _apply_phase(self, event: Event) -> None:
        if (travelled := event.get("network_bytes")) is not None:
            self._travelled[self.phase] += travelled - self._travelled_before
            self._travelled_before = travelled
        if self.phase == "train":
            self.train_end = event["t"]
        self._phases[self.phase] += event["t"] - self._since
        self.phase, self._since = event["name"], event["t"]
        between = self.phase == "teardown" or (self.phase == "import" and self.train_start is not None)
        self.reached = self.reached if between else self.phase
        self.last_progress = event["t"]
        if self.phase == "train" and self.train_start is None:
            self.train_start = event["t"]

    def _apply_expected(self, event: Event) -> None:
        self.expected = event["samples"]

    def _apply_progress(self, event: Event) -> None:
        self.step, self.samples_seen, self.loss = event["step"], event["samples_seen"], event["loss"]
        self.last_progress = event["t"]
        self.beats.append((event["t"], event["samples_seen"]))

    def _apply_snapshot(self, event: Event) -> None:
        self.snapshots.append(event)
        self._apply_progress(event)

    def _apply_pause(self, event: Event) -> None:
        self.paused_s += event["seconds"]
        if travelled := event.get("network_bytes", 0):
            self._travelled[PAUSES] += travelled
            self._travelled[self.phase] -= travelled

    def _apply_count(self, event: Event) -> None:
        self.counts[event["name"]] = event["value"]

    def _apply_objective(self, event: Event) -> None:
        self.objectives.append(event)

    def _apply_breakdown(self, event: Event) -> None:
        self.breakdowns[event["name"]][event["part"]] = event["value"]

    def _apply_task(self, event: Event) -> None:
        self.timeline[event["worker"]].append([event["start_s"], event["end_s"]])

    def _apply_note(self, event: Event) -> None:
        self.notes[event["name"]] = event["text"]

    def _apply_spent(self, event: Event) -> None:
        self.spent[event["role"]] = event["cpu_s"]

    def _apply_sample(self, event: Event) -> None:
        self.samples.append(event)
        self.latest[event["role"]] = event
        if event["role"] == "machine":  # the last of its moment
            self.samples += [{**row, "tick": event["tick"]} for row in self._hosts.values()]

    def _apply_host_sample(self, event: Event) -> None:
        """What a host last told counts at every moment until it tells something else."""
        row = {**event, "sent_bytes": 0, "received_bytes": 0}
        self._hosts[event["host"], event["role"]] = self.latest[event["role"]] = row

    def _apply_host_spent(self, event: Event) -> None:
        self.host_spent[event["role"]] += event["cpu_s"]

    def _apply_host_usage(self, event: Event) -> None:
        self.host_s += event["cpu_s"]

    def _apply_node(self, event: Event) -> None:
        self.nodes[event["node"]].append(event)

    def _apply_error(self, event: Event) -> None:
        self.error = event

    def _apply_worker_failed(self, event: Event) -> None:
        self.worker_failed = event

    def _apply_worker_log(self, event: Event) -> None:
        self.worker_log = event

    def _apply_over_memory(self, event: Event) -> None:
        self.over_memory = event

    def _apply_fault(self, event: Event) -> None:
        """What is done to a node on purpose is not held against the trial: it has its whole patience from here."""
        trained = event["t"] - (self.train_start or event["t"]) - self.paused_s
        self.fault = {**event, "at_s": trained, "step": self.step, "samples_seen": self.samples_seen}
        self.last_progress = event["t"]

    def _apply_healed(self, event: Event) -> None:
        self.healed = event
        self.last_progress = event["t"]

    def _apply_lost(self, event: Event) -> None:
        self.losses.append(event)

    def _apply_usage(self, event: Event) -> None:
        self.usage = event

    def _apply_done(self, event: Event) -> None:
        self.done = True
