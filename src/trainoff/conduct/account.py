"""What a trial used up, and how quiet the machine was meanwhile."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainoff.conduct.nodes import book_nodes
from trainoff.records import Record
from trainoff.runner.events import Event, Story
from trainoff.study.nodes import NodeSpec


def book_resources(record: Record, story: Story, nodes: Sequence[NodeSpec] = ()) -> None:
    """Fill in every figure of consumption, from the kernel's account and the samples; `nodes` are the emulated ones."""
    record.nodes = book_nodes(nodes, story)
    usage = story.usage or {}
    if usage:
        # The kernel's account is exact, but lacks processes that outlived their parents; the samples have seen those.
        here = max(usage["user_s"] + usage["system_s"], sum(story.spent.values()))
        record.cpu_s = here + max(story.host_s, sum(story.host_spent.values()))
        record.context_switches, record.orphans = usage["switches"], usage["orphans"]
        record.cpu_s_by_role = _account_for(record.cpu_s, _sum(story.spent, story.host_spent))
        record.sampler = {"cpu_s": usage["sampler_s"]}
    ticks = _by_tick(story.samples)
    record.sampler["samples"] = len(ticks)
    roles = [[row for row in rows if row["role"] != "machine"] for rows in ticks]
    peaks = [sum(row["pss"] for row in rows) for rows in roles]
    # A peak between two samples is missed by them, but not by the kernel, at least not the largest process's.
    record.peak_memory_bytes = max([*peaks, usage.get("largest_rss", 0)]) or None
    for row in (row for rows in roles for row in rows):
        peak = record.peak_memory_bytes_by_role.get(row["role"], 0)
        record.peak_memory_bytes_by_role[row["role"]] = max(peak, row["pss"])
        if row["sent_bytes"] or row["received_bytes"]:
            traffic = {"sent": row["sent_bytes"], "received": row["received_bytes"]}
            record.network_bytes_by_role[row["role"]] = traffic
    if roles:
        record.disk_read_bytes = sum(row["read_bytes"] for row in roles[-1])
        record.disk_write_bytes = sum(row["write_bytes"] for row in roles[-1])
    machine = [row for row in story.samples if row["role"] == "machine"]
    if machine:
        record.network_bytes = machine[-1]["network_bytes"]
        record.network_bytes_by_phase = story.network_bytes_by_phase(record.network_bytes)
        record.noise |= noise(machine, story.cpu_at(here=True))
    record.counts = _finite(story.counts)
    record.notes = dict(story.notes)
    record.timeline = dict(story.timeline)
    record.breakdowns = {name: _finite(parts) for name, parts in story.breakdowns.items()}
    _book_waiting(record)
    record.training = _training(record, story)
    rounds, travelled = record.counts.get("rounds"), record.network_bytes_by_phase.get("train")
    if rounds and travelled:
        record.counts["bytes_per_round"] = travelled / rounds


def _finite(figures: Mapping[str, float]) -> dict[str, float]:
    """Without what no record can hold; any process may write an event."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _book_waiting(record: Record) -> None:
    """A worker that neither computes nor communicates nor is fed while the training lasts is waiting.

    Where the training began again, only its last part is known, and nothing is said.
    """
    kinds = [record.breakdowns.get(name, {}) for name in ("computing_s", "communicating_s", "feeding_s")]
    if kinds[0] and record.train_s is not None and not record.counts.get("restarts"):
        busy = {worker: sum(kind.get(worker, 0.0) for kind in kinds) for worker in kinds[0]}
        record.breakdowns["waiting_s"] = {worker: max(0.0, record.train_s - spent) for worker, spent in busy.items()}


def _training(record: Record, story: Story) -> dict[str, Any]:
    """What the machine was doing while the trial trained: the figures by which a bottleneck is told."""
    start, end = story.train_start, story.train_end
    if start is None or end is None or end <= start:
        return {}
    cpus = record.environment.get("cpus") or 1
    asked = sum(node["cores"] for node in record.nodes) or math.ceil(record.workers * record.cores)
    given = {"attach": cpus, "hosts": asked}.get(record.cluster, min(cpus, asked))
    roles = dict.fromkeys(row["role"] for row in story.samples if row["role"] != "machine")
    cores = {role: round(_spent(story.cpu_at(role), start, end) / (end - start), 4) for role in roles}
    machine = [row for row in story.samples if row["role"] == "machine" and start <= row["tick"] <= end]
    found: dict[str, Any] = {
        "cpu_share": round(_spent(story.cpu_at(), start, end) / (end - start) / given, 4),
        "cpu_cores_by_role": cores,
    }
    if machine:
        found["load"] = round(sum(row["load"] for row in machine) / len(machine), 2)
        found["runnable"] = round(sum(row["runnable"] or 0 for row in machine) / len(machine), 2)
    if record.peak_memory_bytes and (total := record.environment.get("memory_bytes")):
        found["memory_share"] = round(record.peak_memory_bytes / total, 4)
    if travelled := record.network_bytes_by_phase.get("train"):
        found["network_bytes_per_s"] = round(travelled / (end - start))
    return found


def _spent(series: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """CPU seconds between two moments, by a series of (time, seconds so far)."""
    if len(series) < 2:
        return 0.0
    times, values = zip(*series, strict=True)
    first, last = np.interp([start, end], times, values)
    return float(last - first)


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Both together, by role."""
    return {role: round(one.get(role, 0.0) + other.get(role, 0.0), 3) for role in (*one, *other)}


def _account_for(total: float, by_role: Mapping[str, float]) -> dict[str, float]:
    """What the kernel counted and no sample saw, processes shorter than a sample, is not swept under the carpet."""
    rest = total - sum(by_role.values())
    return {**by_role, "unattributed": round(rest, 3)} if rest > 0.005 else dict(by_role)


def noise(machine: Sequence[Event], own_cpu: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """How quiet the machine was between the first and the last sample: shares of the time, and the load."""
    first, last = machine[0], machine[-1]
    elapsed = last["tick"] - first["tick"]
    load = {"load_before": first["load"], "load_after": last["load"]}
    if elapsed <= 0:
        return load

    def share(name: str) -> float | None:
        return None if first[name] is None else round((last[name] - first[name]) / elapsed, 4)

    busy = last["busy_s"] - first["busy_s"]
    own = own_cpu[-1][1] - own_cpu[0][1] if own_cpu else 0.0
    return {
        **load,
        "most_runnable": max(row["runnable"] or 0 for row in machine),
        "other_cores": round(max(0.0, busy - own) / elapsed, 4),
        "steal_cores": share("steal_s"),
        "cpu_pressure": share("pressure_cpu_s"),
        "memory_pressure": share("pressure_memory_s"),
        "io_pressure": share("pressure_io_s"),
    }


def _by_tick(samples: Sequence[Event]) -> list[list[Event]]:
    ticks: dict[float, list[Event]] = defaultdict(list)
    for row in samples:
        ticks[row["tick"]].append(row)
    return [ticks[tick] for tick in sorted(ticks)]
