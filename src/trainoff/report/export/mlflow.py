"""Export to MLflow: a run per trial, on a server or in a folder. Runs that were exported before are left alone."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.data import Progress
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.report.export import ExportFolder, TrackedRun, needs, tracked

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY = "trainoff.record"  # the tag that identifies an exported record
LONGEST = 6000  # characters of a parameter or tag
AT_ONCE = 1000  # metrics in one call
IN_A_FOLDER = "MLFLOW_ALLOW_FILE_STORE"
STATUSES = {"ok": "FINISHED", "interrupted": "KILLED"}  # all others are FAILED


def write(target: ExportFolder, folder: Path, records: Sequence[Record], progress: Progress) -> list[str]:
    """Write to a folder in MLflow's own format; return the end of the summary and the command that opens it."""
    os.environ[IN_A_FOLDER] = "true"  # MLflow prefers a database, which the slim client cannot write
    details = write_to(target.folder.resolve().as_uri(), folder, records, progress)
    return [*details, f"Open it: {IN_A_FOLDER}=true mlflow ui --backend-store-uri {target.folder}"]


def write_to(uri: str, folder: Path, records: Sequence[Record], progress: Progress) -> list[str]:
    """Write to a tracking URI; return the end of the summary."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # so that a wrong address fails at once
    with needs("mlflow"):
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    runs = tracked(folder, records)
    try:
        exporter = _Exporter(MlflowClient(uri))
        for number, run in enumerate(runs, 1):
            exporter.add(run)
            progress("exporting runs", number, len(runs))
    except (MlflowException, OSError) as error:
        first = str(error).strip().split("\n")[0]
        if "Failed to establish a new connection" in first:
            raise TrainoffError(
                f"{uri}: no MLflow server answers at this address; start one, or leave --uri out"
            ) from error
        raise TrainoffError(f"{uri}: MLflow rejected the runs: {first}") from error
    return [f", {exporter.present} of them already present" if exporter.present else ""]


class _Exporter:
    """Adds records to MLflow, an experiment per study and a run per record, each once."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self._experiments: dict[str, tuple[str, set[str]]] = {}
        self.present = 0

    def add(self, run: TrackedRun) -> None:
        """Export a record, unless it is present."""
        experiment, present = self._experiment(run.record.study)
        if _key(run.record) in present:
            self.present += 1
        else:
            _write(self._client, experiment, run)

    def _experiment(self, study: str) -> tuple[str, set[str]]:
        """Return the id of a study's experiment, and the keys of the records that it has."""
        if study not in self._experiments:
            found = self._client.get_experiment_by_name(study)
            if found is not None and found.lifecycle_stage == "deleted":
                raise TrainoffError(f"MLflow's experiment `{study}` has been deleted; restore it, or purge it")
            experiment = found.experiment_id if found else self._client.create_experiment(study)
            self._experiments[study] = experiment, self._present(experiment) if found else set()
        return self._experiments[study]

    def _present(self, experiment: str) -> set[str]:
        """Return the keys of exported records; runs of an interrupted export are deleted, to be written again."""
        keys: set[str] = set()
        token = None
        while True:
            page = self._client.search_runs([experiment], max_results=AT_ONCE, page_token=token)
            for run in page:
                if key := run.data.tags.get(KEY):
                    if run.info.status == "RUNNING":
                        self._client.delete_run(run.info.run_id)
                    else:
                        keys.add(key)
            token = page.token
            if not token:
                return keys


def _key(record: Record) -> str:
    """Return the identity of a record; two machines may export the same trial to the same server."""
    return f"{record.trial_id}.{record.attempt} {record.started_at} {record.environment.get('host')}"


def _write(client: MlflowClient, experiment: str, run: TrackedRun) -> None:
    from mlflow.entities import Metric, Param

    record = run.record
    start, end = int(run.start * 1000), int(run.end * 1000)
    run_id = client.create_run(experiment, start, _tags(run), run.name).info.run_id
    metrics = [Metric(name, value, int(at * 1000), samples) for name, samples, at, value in run.points()]
    metrics += [Metric(name, value, end, record.samples_seen or 0) for name, value in run.figures().items()]
    client.log_batch(run_id, params=[Param(name, _text(value)) for name, value in run.settings().items()])
    for first in range(0, len(metrics), AT_ONCE):
        client.log_batch(run_id, metrics[first : first + AT_ONCE])
    client.log_text(run_id, json.dumps(record.to_json(), indent=1), "record.json")
    client.set_terminated(run_id, STATUSES.get(record.status, "FAILED"), end)


def _tags(run: TrackedRun) -> dict[str, str]:
    record = run.record
    known: dict[str, Any] = {
        KEY: _key(record),
        "status": record.status,
        "reason": record.reason,
        "equivalence": record.equivalence.get("verdict"),
        "trainoff": record.environment.get("trainoff"),
        "mlflow.source.name": "trainoff",
    }
    return {name: _text(value) for name, value in known.items() if value is not None}


def _text(value: Any) -> str:
    return str(value)[:LONGEST]
