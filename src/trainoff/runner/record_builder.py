"""Build the record of a trial from its events, its files and the evaluation of its snapshots."""

from __future__ import annotations

import datetime
import io
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainoff import data, engines
from trainoff.engines import Engine, Job
from trainoff.records import METRICS, Record, error_of, measured, time_to_target
from trainoff.runner.equivalence import certificate, curve, objectives
from trainoff.runner.events import MACHINE, SampleEvent, TrialState, growth
from trainoff.runner.faults import fault_impact, fault_of
from trainoff.runner.machine import environment
from trainoff.runner.status import TrialStatus, status_of
from trainoff.runner.trial_process import ExitInfo
from trainoff.study import Trial
from trainoff.study.machines import NodeSpec, nodes_of

LOG_TAIL = 50
DIVERGED = 50  # a loss so many times that of guessing: the weights may be finite, but the training has diverged
SAME_ACCURACY = 0.005  # the largest difference between the engine's predictions and those of its final weights


def bare_record(trial: Trial, engine: Engine, trial_id: str, attempt: int, status: TrialStatus) -> Record:
    """Return a record with what is known before the trial runs, which is all for an `unsupported` one."""
    return Record(
        trial_id=trial_id,
        attempt=attempt,
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
        dataset={"name": trial.data, "identity": data.identity(trial.data)},
        **asdict(status),
        time_to_target={str(target): None for target in trial.targets},
        usd_per_hour=trial.usd_per_hour,
        environment=environment(),
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def full_record(record: Record, trial: Trial, exit_info: ExitInfo, job: Job, differs: str | None) -> None:
    """Add to a record what was measured, and write curve.parquet and samples.parquet.

    If the evaluation fails, the record keeps everything that was measured.
    """
    state, model = exit_info.state, job.model
    _set_times(record, exit_info)
    _set_resources(record, state, nodes_of(trial) if trial.emulated else ())
    record.dataset |= {"train_rows": len(job.data.x_train), "test_rows": len(job.data.x_test), **job.data.facts}
    record.model = {"kind": model.kind, "classes": model.classes, "parameters": model.parameter_count, **asdict(model)}
    status = status_of(exit_info)
    try:
        with np.errstate(all="ignore"):  # the training may have diverged
            rows = curve(state, job.folder, model, job.data)
            record.equivalence = certificate(job, state, differs)
        _set_quality(record, rows, job)
        _write([*rows, *objectives(state)], job.folder / "curve.parquet")
        status = _check_result(status, record, rows)
    except Exception as error:
        reason = f"the result could not be evaluated: {type(error).__name__}: {error}"
        status = replace(status, status="wrong-result", reason=reason) if status.status == "ok" else status
    for name, value in asdict(status).items():
        setattr(record, name, value)
    if fault := fault_of(trial):
        record.fault = fault_impact(fault, state, record.failed)
    for snapshot in job.folder.glob("snapshot-*.f32"):
        snapshot.unlink()  # evaluated: the record may need the space
    _collect_logs(job.folder)
    if record.failed:
        lines = (job.folder / "log.txt").read_text(errors="replace").splitlines()[-LOG_TAIL:]
        record.log_tail = (state.worker_log and state.worker_log.tail) or "\n".join(lines)
    samples = [{"t_s": sample.tick - state.start, **sample.row()} for sample in state.samples]
    _write(samples, job.folder / "samples.parquet")


def _set_times(record: Record, exit_info: ExitInfo) -> None:
    state = exit_info.state
    record.cold_s = exit_info.end - state.start
    record.pause_s = state.paused_s
    record.phases_s = state.phases_s(exit_info.end)
    record.train_s, record.test_s = record.phases_s["train"], record.phases_s["test"]
    record.cost_usd = record.usd(record.train_s)
    record.steps, record.samples_seen = state.step, state.samples_seen
    if record.train_s and state.samples_seen:
        record.samples_per_s = state.samples_seen / record.train_s


def _set_quality(record: Record, rows: list[dict[str, Any]], job: Job) -> None:
    metric = METRICS[record.metric]
    times, values = [row["train_s"] for row in rows], [measured(row)[metric.name] for row in rows]
    for target in record.targets:
        record.time_to_target[str(target)] = time_to_target(times, values, target, metric)
    if rows:
        record.test_metrics = _finite(measured(rows[-1]))
    predictions = job.folder / "predictions.npy"
    if predictions.exists():
        labels = np.load(predictions)
        if labels.shape == job.data.y_test.shape:
            record.test_accuracy = float(np.mean(labels == job.data.y_test))
            record.test_metrics |= {"accuracy": record.test_accuracy, "error": error_of(record.test_accuracy)}


def _check_result(status: TrialStatus, record: Record, rows: list[dict[str, Any]]) -> TrialStatus:
    """Return the status after the result of a trial that ended well has been checked."""
    if status.status != "ok":
        return status
    wrong = replace(status, status="wrong-result", phase="train")
    if record.equivalence["verdict"] == "wrong":
        return replace(wrong, reason=record.equivalence["reason"])
    if not rows or rows[-1]["samples_seen"] != record.samples_seen:
        return replace(wrong, reason="the engine did not report its final weights")
    times_guessing = rows[-1]["loss"] / math.log(record.model["classes"])
    if times_guessing > DIVERGED:
        reason = f"the loss ended at {rows[-1]['loss']:.3g}, {times_guessing:.0f} times that of guessing"
        return replace(status, status="diverged", phase="train", reason=reason)
    if record.test_accuracy is None:
        return replace(wrong, phase="test", reason="predict did not return one label per row of the test set")
    if abs(record.test_accuracy - rows[-1]["accuracy"]) > SAME_ACCURACY:
        predicted, evaluated = record.test_accuracy, rows[-1]["accuracy"]
        reason = f"predict scores {predicted:.4f}, but the final weights score {evaluated:.4f}"
        return replace(wrong, phase="test", reason=reason)
    return status


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    import polars

    table = io.BytesIO()  # polars does not report a full disk as an OSError
    polars.DataFrame(rows, infer_schema_length=None).write_parquet(table)
    path.write_bytes(table.getbuffer())


def _collect_logs(folder: Path) -> None:
    """Append the logs of the cluster's processes to the log of the trial process."""
    logs = folder / "logs"
    with (folder / "log.txt").open("a") as log:
        for part in sorted([*logs.glob("**/*.txt"), *logs.glob("**/stderr"), *logs.glob("**/stdout")]):
            if text := part.read_text(errors="replace"):
                log.write(f"\n==== {part.relative_to(logs).with_suffix('')} ====\n{text}")


def _set_resources(record: Record, state: TrialState, nodes: Sequence[NodeSpec]) -> None:
    """Set what the trial used, by the kernel's counts and the samples; `nodes` are the emulated ones."""
    record.nodes = node_figures(nodes, state)
    _set_usage(record, state)
    record.counts = _finite(state.counts)
    record.notes = dict(state.notes)
    if state.unreadable:
        first = "; ".join(state.unreadable)
        record.notes["unreadable events"] = f"{state.unreadable_lines} on the pipe, the first: {first}"
    record.timeline = dict(state.timeline)
    record.breakdowns = {name: _finite(parts) for name, parts in state.breakdowns.items()}
    _set_waiting(record)
    record.training = _training(record, state)
    rounds, sent = record.counts.get("rounds"), record.network_bytes_by_phase.get("train")
    if rounds and sent:
        record.counts["bytes_per_round"] = sent / rounds


def _set_usage(record: Record, state: TrialState) -> None:
    if usage := state.usage:
        # The kernel's count is exact but lacks processes that outlived their parents; the samples include those.
        here = max(usage.user_s + usage.system_s, sum(state.cpu_s.values()))
        record.cpu_s = here + max(state.host_total_s, sum(state.host_cpu_s.values()))
        record.context_switches, record.orphans = usage.switches, usage.orphans
        by_role = {role: state.cpu_s.get(role, 0.0) + state.host_cpu_s.get(role, 0.0)
                   for role in (*state.cpu_s, *state.host_cpu_s)}  # fmt: skip
        record.cpu_s_by_role = {role: round(seconds, 3) for role, seconds in by_role.items()}
        if (rest := record.cpu_s - sum(record.cpu_s_by_role.values())) > 0.005:
            record.cpu_s_by_role["unattributed"] = round(rest, 3)  # processes shorter than the time between samples
        record.sampler = {"cpu_s": usage.sampler_s}
    memory: dict[float, int] = defaultdict(int)  # at each sample
    peaks = record.peak_memory_bytes_by_role
    for row in sorted(state.samples, key=lambda row: row.tick):
        memory[row.tick] += row.pss  # that of the machine's row is 0
        if row.role != MACHINE:
            peaks[row.role] = max(peaks.get(row.role, 0), row.pss)
            if row.sent_bytes or row.received_bytes:
                record.network_bytes_by_role[row.role] = {"sent": row.sent_bytes, "received": row.received_bytes}
    record.sampler["samples"] = len(memory)
    # Samples miss a peak between them; the kernel knows that of the largest process.
    record.peak_memory_bytes = max([*memory.values(), usage.largest_rss if usage else 0]) or None
    if memory:
        end = max(memory)
        last = [row for row in state.samples if row.tick == end and row.role != MACHINE]
        record.disk_read_bytes = sum(row.read_bytes for row in last)
        record.disk_write_bytes = sum(row.write_bytes for row in last)
    if machine := [row for row in state.samples if row.role == MACHINE]:
        record.network_bytes = machine[-1].network_bytes
        record.network_bytes_by_phase = state.network_bytes_by_phase(record.network_bytes)
        record.noise |= noise(machine, state.cpu_series(here=True))


def _finite(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the finite figures: JSON has no others, and any process may write an event."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _set_waiting(record: Record) -> None:
    """Set the time in which a worker neither computed nor communicated nor was fed; not known after a restart."""
    kinds = [record.breakdowns.get(name, {}) for name in ("computing_s", "communicating_s", "feeding_s")]
    if kinds[0] and record.train_s is not None and not record.counts.get("restarts"):
        busy = {worker: sum(kind.get(worker, 0.0) for kind in kinds) for worker in kinds[0]}
        record.breakdowns["waiting_s"] = {worker: max(0.0, record.train_s - spent) for worker, spent in busy.items()}


def _training(record: Record, state: TrialState) -> dict[str, Any]:
    """Return the use of the machine during the training, by which bottlenecks are found."""
    if not (span := state.training_span):
        return {}
    start, end = span
    cpus = record.environment.get("cpus") or 1
    asked = sum(node["cores"] for node in record.nodes) or math.ceil(record.workers * record.cores)
    given = {"attach": cpus, "hosts": asked}.get(record.cluster, min(cpus, asked))
    roles = dict.fromkeys(row.role for row in state.samples if row.role != MACHINE)
    cores = {role: round(growth(state.cpu_series(role), *span) / (end - start), 4) for role in roles}
    machine = [row for row in state.samples if row.role == MACHINE and start <= row.tick <= end]
    found: dict[str, Any] = {
        "cpu_share": round(growth(state.cpu_series(), *span) / (end - start) / given, 4),
        "cpu_cores_by_role": cores,
    }
    if machine:
        found["load"] = round(sum(row.load for row in machine) / len(machine), 2)
        found["runnable"] = round(sum(row.runnable or 0 for row in machine) / len(machine), 2)
    if record.peak_memory_bytes and (total := record.environment.get("memory_bytes")):
        found["memory_share"] = round(record.peak_memory_bytes / total, 4)
    if sent := record.network_bytes_by_phase.get("train"):
        found["network_bytes_per_s"] = round(sent / (end - start))
    return found


def noise(machine: Sequence[SampleEvent], trial_cpu: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return the load that other processes and the hypervisor put on the machine between the first and last sample."""
    first, last = machine[0], machine[-1]
    elapsed = last.tick - first.tick
    load = {"load_before": first.load, "load_after": last.load}
    if elapsed <= 0:
        return load

    def share(name: str) -> float | None:
        before, after = getattr(first, name), getattr(last, name)
        return None if before is None or after is None else round((after - before) / elapsed, 4)

    busy = last.busy_s - first.busy_s
    trial_s = trial_cpu[-1][1] - trial_cpu[0][1] if trial_cpu else 0.0
    return {
        **load,
        "most_runnable": max(row.runnable or 0 for row in machine),
        "other_cores": round(max(0.0, busy - trial_s) / elapsed, 4),
        "steal_cores": share("steal_s"),
        "cpu_pressure": share("pressure_cpu_s"),
        "memory_pressure": share("pressure_memory_s"),
        "io_pressure": share("pressure_io_s"),
    }


COUNTERS = ("cpu_s", "throttled_s", "sent_bytes", "received_bytes")


def node_figures(specs: Sequence[NodeSpec], state: TrialState) -> list[dict[str, Any]]:
    """Return for every node its size, what it used, and what it used during the training."""
    figures = []
    for number, spec in enumerate(specs):
        if not (rows := state.nodes.get(number)):
            continue
        training = {}
        if span := state.training_span:
            training["seconds"] = round(span[1] - span[0], 4)
            for name in COUNTERS:
                training[name] = round(growth([(row.tick, getattr(row, name)) for row in rows], *span), 4)
        figures.append({
            "name": f"node-{number}",
            **asdict(spec),
            **{name: getattr(rows[-1], name) for name in COUNTERS},
            "peak_memory_bytes": max(row.peak_memory_bytes for row in rows),
            "oom_kills": rows[-1].oom_kills,
            "training": training,
        })  # fmt: skip
    return figures
