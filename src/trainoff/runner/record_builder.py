"""From what a trial said and did to its record."""

from __future__ import annotations

import datetime
import io
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, log
from pathlib import Path
from typing import Any

import numpy as np

from trainoff import engines
from trainoff.engines import Engine, Job
from trainoff.records import METRICS, Record, error_of, measured, time_to_target
from trainoff.runner.equivalence import certificate, curve, objectives
from trainoff.runner.events import MACHINE, NodeEvent, SampleEvent, TrialState
from trainoff.runner.faults import fault_impact, fault_of
from trainoff.runner.machine import environment
from trainoff.runner.status import TrialStatus, status_of
from trainoff.runner.trial_process import ExitInfo
from trainoff.study import Trial
from trainoff.study.machines import NodeSpec, nodes_of

LOG_TAIL = 50
ASTRAY = 50  # times the loss of guessing: the weights may still be numbers, but the training has gone astray
SAME_ACCURACY = 0.005  # how far an engine's own predictions may lie from those of its final weights


@dataclass(frozen=True)
class Identity:
    """What a record is filed under."""

    trial_id: str
    attempt: int
    data_identity: str


def bare_record(trial: Trial, engine: Engine, identity: Identity, verdict: TrialStatus) -> Record:
    """The part of a record that is known before anything runs: all there is of an `unsupported` trial."""
    return Record(
        trial_id=identity.trial_id,
        attempt=identity.attempt,
        study=trial.study,
        engine=trial.engine,
        engine_version=engines.version_of(engine),
        workload=trial.workload,
        mode=trial.mode,
        workers=trial.workers,
        cores=trial.cores,
        memory_gb=trial.memory_gb,
        cluster=trial.cluster,
        params=trial.public_params(),
        settled=list(trial.settled),
        seed=trial.seed,
        repetition=trial.repetition,
        position=trial.position,
        targets=list(trial.targets),
        limits=asdict(trial.limits),
        metric=trial.metric,
        dataset={"name": trial.data, "identity": identity.data_identity},
        status=verdict.status,
        phase=verdict.phase,
        reason=verdict.reason,
        traceback=verdict.traceback,
        unfinished=verdict.unfinished,
        time_to_target={str(target): None for target in trial.targets},
        usd_per_hour=trial.usd_per_hour,
        environment=environment(),
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def full_record(record: Record, trial: Trial, ending: ExitInfo, job: Job, differs: str | None) -> None:
    """Add to a bare record all that was measured; writes curve.parquet and samples.parquet beside it.

    What cannot be evaluated still becomes a record, with everything that was measured.
    """
    _book_times(record, ending)
    book_resources(record, ending.state, nodes_of(trial) if trial.emulated else ())
    record.dataset |= {"train_rows": len(job.data.x_train), "test_rows": len(job.data.x_test), **job.data.facts}
    record.model = {
        "kind": job.model.kind,
        "classes": job.model.classes,
        "parameters": job.model.parameters,
        **asdict(job.model),
    }
    verdict = status_of(ending)
    try:
        verdict = _evaluate(record, ending, job, differs, verdict)
    except Exception as error:
        reason = f"the result could not be evaluated: {type(error).__name__}: {error}"
        verdict = replace(verdict, status="wrong-result", reason=reason) if verdict.status == "ok" else verdict
    _apply(record, verdict)
    if asked := fault_of(trial):
        record.fault = fault_impact(asked, ending.state, record.failed)
    _drop_snapshots(job.folder)
    _gather_logs(job.folder)
    if record.failed:
        worker = ending.state.worker_log
        record.log_tail = worker.tail if worker and worker.tail else _tail(job.folder / "log.txt")
    _write(_series(ending.state), job.folder / "samples.parquet")


def _evaluate(record: Record, ending: ExitInfo, job: Job, differs: str | None, verdict: TrialStatus) -> TrialStatus:
    """The curve, the certificate, the accuracy; and what they make of the verdict."""
    with np.errstate(all="ignore"):  # a network that diverged is evaluated like any other
        rows = curve(ending.state, job.folder, job.model, job.data)
        record.equivalence = certificate(job, ending.state, differs)
    _book_quality(record, rows, job)
    _write([*rows, *objectives(ending.state)], job.folder / "curve.parquet")
    return _second_thoughts(verdict, record, rows)


def _drop_snapshots(folder: Path) -> None:
    """They have served; the room they took may be needed for the record."""
    for snapshot in folder.glob("snapshot-*.f32"):
        snapshot.unlink()


def _book_times(record: Record, ending: ExitInfo) -> None:
    state = ending.state
    record.cold_s = ending.end - state.start
    record.pause_s = state.paused_s
    record.phases_s = state.phases_s(ending.end)
    record.train_s, record.test_s = record.phases_s["train"], record.phases_s["test"]
    record.cost_usd = record.usd(record.train_s)
    record.steps, record.samples_seen = state.step, state.samples_seen
    if record.train_s and state.samples_seen:
        record.samples_per_s = state.samples_seen / record.train_s


def _book_quality(record: Record, rows: list[dict[str, Any]], job: Job) -> None:
    metric = METRICS[record.metric]
    times, values = [row["train_s"] for row in rows], [measured(row)[metric.name] for row in rows]
    for target in record.targets:
        record.time_to_target[str(target)] = time_to_target(times, values, target, metric)
    if rows:
        record.test_metrics = {name: value for name, value in measured(rows[-1]).items() if isfinite(value)}
    predictions = job.folder / "predictions.npy"
    if predictions.exists():
        labels = np.load(predictions)
        if labels.shape == job.data.y_test.shape:
            record.test_accuracy = float(np.mean(labels == job.data.y_test))
            record.test_metrics |= {"accuracy": record.test_accuracy, "error": error_of(record.test_accuracy)}


def _second_thoughts(verdict: TrialStatus, record: Record, rows: list[dict[str, Any]]) -> TrialStatus:
    """A trial that ended well may still have a wrong result."""
    if verdict.status != "ok":
        return verdict
    wrong = replace(verdict, status="wrong-result", phase="train")
    if record.equivalence["verdict"] == "wrong":
        return replace(wrong, reason=record.equivalence["reason"])
    if not rows or rows[-1]["samples_seen"] != record.samples_seen:
        return replace(wrong, reason="the engine did not hand over its final weights")
    astray = rows[-1]["loss"] / log(record.model["classes"])
    if astray > ASTRAY:
        reason = f"the loss ended at {rows[-1]['loss']:.3g}, {astray:.0f} times that of guessing"
        return replace(verdict, status="diverged", phase="train", reason=reason)
    if record.test_accuracy is None:
        return replace(wrong, phase="test", reason="predict did not return one label per row of the test set")
    if abs(record.test_accuracy - rows[-1]["accuracy"]) > SAME_ACCURACY:
        own, ours = record.test_accuracy, rows[-1]["accuracy"]
        return replace(wrong, phase="test", reason=f"predict scores {own:.4f}, but the final weights score {ours:.4f}")
    return verdict


def _apply(record: Record, verdict: TrialStatus) -> None:
    for name, value in asdict(verdict).items():
        setattr(record, name, value)


def _series(state: TrialState) -> list[dict[str, Any]]:
    """The samples with the trial's own time."""
    return [{"t_s": sample.tick - state.start, **sample.row()} for sample in state.samples]


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    import polars

    table = io.BytesIO()  # polars would not say with an OSError that the disk is full
    polars.DataFrame(rows, infer_schema_length=None).write_parquet(table)
    path.write_bytes(table.getbuffer())


def _gather_logs(folder: Path) -> None:
    """Add what the processes of the cluster said to the trial's own log."""
    with (folder / "log.txt").open("a") as log:
        logs = folder / "logs"
        for part in sorted([*logs.glob("**/*.txt"), *logs.glob("**/stderr"), *logs.glob("**/stdout")]):
            if said := part.read_text(errors="replace"):
                log.write(f"\n==== {part.relative_to(logs).with_suffix('')} ====\n{said}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:]) if log.exists() else ""


def book_resources(record: Record, state: TrialState, nodes: Sequence[NodeSpec] = ()) -> None:
    """Fill in every figure of consumption, from the kernel's account and the samples; `nodes` are the emulated ones."""
    record.nodes = book_nodes(nodes, state)
    usage = state.usage
    if usage:
        # The kernel's account is exact, but lacks processes that outlived their parents; the samples have seen those.
        here = max(usage.user_s + usage.system_s, sum(state.cpu_s.values()))
        record.cpu_s = here + max(state.host_total_s, sum(state.host_cpu_s.values()))
        record.context_switches, record.orphans = usage.switches, usage.orphans
        record.cpu_s_by_role = _account_for(record.cpu_s, _sum(state.cpu_s, state.host_cpu_s))
        record.sampler = {"cpu_s": usage.sampler_s}
    ticks = _by_tick(state.samples)
    record.sampler["samples"] = len(ticks)
    roles = [[row for row in rows if row.role != MACHINE] for rows in ticks]
    peaks = [sum(row.pss for row in rows) for rows in roles]
    # A peak between two samples is missed by them, but not by the kernel, at least not the largest process's.
    record.peak_memory_bytes = max([*peaks, usage.largest_rss if usage else 0]) or None
    for row in (row for rows in roles for row in rows):
        peak = record.peak_memory_bytes_by_role.get(row.role, 0)
        record.peak_memory_bytes_by_role[row.role] = max(peak, row.pss)
        if row.sent_bytes or row.received_bytes:
            traffic = {"sent": row.sent_bytes, "received": row.received_bytes}
            record.network_bytes_by_role[row.role] = traffic
    if roles:
        record.disk_read_bytes = sum(row.read_bytes for row in roles[-1])
        record.disk_write_bytes = sum(row.write_bytes for row in roles[-1])
    machine = [row for row in state.samples if row.role == MACHINE]
    if machine:
        record.network_bytes = machine[-1].network_bytes
        record.network_bytes_by_phase = state.network_bytes_by_phase(record.network_bytes)
        record.noise |= noise(machine, state.cpu_series(here=True))
    record.counts = _finite(state.counts)
    record.notes = dict(state.notes)
    if state.unreadable:
        first = "; ".join(state.unreadable)
        record.notes["unreadable events"] = f"{state.unreadable_lines} on the pipe, the first: {first}"
    record.timeline = dict(state.timeline)
    record.breakdowns = {name: _finite(parts) for name, parts in state.breakdowns.items()}
    _book_waiting(record)
    record.training = _training(record, state)
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


def _training(record: Record, state: TrialState) -> dict[str, Any]:
    """What the machine was doing while the trial trained: the figures by which a bottleneck is told."""
    start, end = state.train_start, state.train_end
    if start is None or end is None or end <= start:
        return {}
    cpus = record.environment.get("cpus") or 1
    asked = sum(node["cores"] for node in record.nodes) or math.ceil(record.workers * record.cores)
    given = {"attach": cpus, "hosts": asked}.get(record.cluster, min(cpus, asked))
    roles = dict.fromkeys(row.role for row in state.samples if row.role != MACHINE)
    cores = {role: round(_spent(state.cpu_series(role), start, end) / (end - start), 4) for role in roles}
    machine = [row for row in state.samples if row.role == MACHINE and start <= row.tick <= end]
    found: dict[str, Any] = {
        "cpu_share": round(_spent(state.cpu_series(), start, end) / (end - start) / given, 4),
        "cpu_cores_by_role": cores,
    }
    if machine:
        found["load"] = round(sum(row.load for row in machine) / len(machine), 2)
        found["runnable"] = round(sum(row.runnable or 0 for row in machine) / len(machine), 2)
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


def noise(machine: Sequence[SampleEvent], own_cpu: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """How quiet the machine was between the first and the last sample: shares of the time, and the load."""
    first, last = machine[0], machine[-1]
    elapsed = last.tick - first.tick
    load = {"load_before": first.load, "load_after": last.load}
    if elapsed <= 0:
        return load

    def share(name: str) -> float | None:
        before, after = getattr(first, name), getattr(last, name)
        return None if before is None or after is None else round((after - before) / elapsed, 4)

    busy = last.busy_s - first.busy_s
    own = own_cpu[-1][1] - own_cpu[0][1] if own_cpu else 0.0
    return {
        **load,
        "most_runnable": max(row.runnable or 0 for row in machine),
        "other_cores": round(max(0.0, busy - own) / elapsed, 4),
        "steal_cores": share("steal_s"),
        "cpu_pressure": share("pressure_cpu_s"),
        "memory_pressure": share("pressure_memory_s"),
        "io_pressure": share("pressure_io_s"),
    }


def _by_tick(samples: Sequence[SampleEvent]) -> list[list[SampleEvent]]:
    ticks: dict[float, list[SampleEvent]] = defaultdict(list)
    for row in samples:
        ticks[row.tick].append(row)
    return [ticks[tick] for tick in sorted(ticks)]


COUNTED = ("cpu_s", "throttled_s", "sent_bytes", "received_bytes")  # they only grow


def book_nodes(specs: Sequence[NodeSpec], state: TrialState) -> list[dict[str, Any]]:
    """For every node what it was given, what it used in all, and what it used while the trial trained."""
    return [_node(number, spec, state) for number, spec in enumerate(specs) if state.nodes.get(number)]


def _node(number: int, spec: NodeSpec, state: TrialState) -> dict[str, Any]:
    rows = state.nodes[number]
    last = rows[-1]
    return {
        "name": f"node-{number}",
        **spec.__dict__,
        **{name: getattr(last, name) for name in COUNTED},
        "peak_memory_bytes": max(row.peak_memory_bytes for row in rows),
        "oom_kills": last.oom_kills,
        "training": _while_training(rows, state),
    }


def _while_training(rows: Sequence[NodeEvent], state: TrialState) -> dict[str, float]:
    start, end = state.train_start, state.train_end
    if start is None or end is None or end <= start:
        return {}
    used = {name: round(_between(rows, name, start, end), 4) for name in COUNTED}
    return {"seconds": round(end - start, 4), **used}


def _between(rows: Sequence[NodeEvent], name: str, start: float, end: float) -> float:
    """By how much a figure grew between two moments."""
    first, last = np.interp([start, end], [row.tick for row in rows], [getattr(row, name) for row in rows])
    return float(last - first)
