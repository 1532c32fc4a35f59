"""From what a trial said and did to its record."""

from __future__ import annotations

import datetime
import io
from dataclasses import asdict, dataclass, replace
from math import isfinite, log
from pathlib import Path
from typing import Any

import numpy as np

from trainoff import engines
from trainoff.conduct.account import book_resources
from trainoff.engines import Engine, Job
from trainoff.records import METRICS, Record, error_of, measured, time_to_target
from trainoff.runner.equivalence import certificate
from trainoff.runner.evaluation import curve, objectives
from trainoff.runner.events import Story
from trainoff.runner.faults.impact import harm
from trainoff.runner.faults.schedule import fault_of
from trainoff.runner.machine import environment
from trainoff.runner.status import Verdict, judge
from trainoff.runner.trial_process import Ending
from trainoff.study import Trial
from trainoff.study.nodes import nodes_of

LOG_TAIL = 50
ASTRAY = 50  # times the loss of guessing: the weights may still be numbers, but the training has gone astray
SAME_ACCURACY = 0.005  # how far an engine's own predictions may lie from those of its final weights


@dataclass(frozen=True)
class Identity:
    """What a record is filed under."""

    trial_id: str
    attempt: int
    data_identity: str


def bare_record(trial: Trial, engine: Engine, identity: Identity, verdict: Verdict) -> Record:
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
        params=trial.shown(),
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


def full_record(record: Record, trial: Trial, ending: Ending, job: Job, differs: str | None) -> None:
    """Add to a bare record all that was measured; writes curve.parquet and samples.parquet beside it.

    What cannot be evaluated still becomes a record, with everything that was measured.
    """
    _book_times(record, ending)
    book_resources(record, ending.story, nodes_of(trial) if trial.emulated else ())
    record.dataset |= {"train_rows": len(job.data.x_train), "test_rows": len(job.data.x_test), **job.data.facts}
    record.model = {
        "kind": job.model.kind,
        "classes": job.model.classes,
        "parameters": job.model.parameters,
        **asdict(job.model),
    }
    verdict = judge(ending)
    try:
        verdict = _evaluate(record, ending, job, differs, verdict)
    except Exception as error:
        reason = f"the result could not be evaluated: {type(error).__name__}: {error}"
        verdict = replace(verdict, status="wrong-result", reason=reason) if verdict.status == "ok" else verdict
    _apply(record, verdict)
    if asked := fault_of(trial):
        record.fault = harm(asked, ending.story, record.failed)
    _drop_snapshots(job.folder)
    _gather_logs(job.folder)
    if record.failed:
        worker = ending.story.worker_log
        record.log_tail = worker["tail"] if worker and worker["tail"] else _tail(job.folder / "log.txt")
    _write(_series(ending.story), job.folder / "samples.parquet")


def _evaluate(record: Record, ending: Ending, job: Job, differs: str | None, verdict: Verdict) -> Verdict:
    """The curve, the certificate, the accuracy; and what they make of the verdict."""
    with np.errstate(all="ignore"):  # a network that diverged is evaluated like any other
        rows = curve(ending.story, job.folder, job.model, job.data)
        record.equivalence = certificate(job, ending.story, differs)
    _book_quality(record, rows, job)
    _write([*rows, *objectives(ending.story)], job.folder / "curve.parquet")
    return _second_thoughts(verdict, record, rows)


def _drop_snapshots(folder: Path) -> None:
    """They have served; the room they took may be needed for the record."""
    for snapshot in folder.glob("snapshot-*.f32"):
        snapshot.unlink()


def _book_times(record: Record, ending: Ending) -> None:
    story = ending.story
    record.cold_s = ending.end - story.start
    record.pause_s = story.paused_s
    record.phases_s = story.phases_s(ending.end)
    record.train_s, record.test_s = record.phases_s["train"], record.phases_s["test"]
    record.cost_usd = record.usd(record.train_s)
    record.steps, record.samples_seen = story.step, story.samples_seen
    if record.train_s and story.samples_seen:
        record.samples_per_s = story.samples_seen / record.train_s


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


def _second_thoughts(verdict: Verdict, record: Record, rows: list[dict[str, Any]]) -> Verdict:
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


def _apply(record: Record, verdict: Verdict) -> None:
    for name, value in asdict(verdict).items():
        setattr(record, name, value)


def _series(story: Story) -> list[dict[str, Any]]:
    """The samples with the trial's own time."""
    left_out = ("kind", "tick", "t")
    return [
        {
            "t_s": row["tick"] - story.start,
            **{key: value for key, value in row.items() if key not in left_out},
        }
        for row in story.samples
    ]


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
