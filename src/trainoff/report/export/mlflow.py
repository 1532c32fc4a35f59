"""MLflow: a run per trial by its own client, on a server or in a folder; what is there already is left alone."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.data import Progress
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.report.export import ExportFolder, TrackedRun, needs, tracked

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY = "trainoff.record"  # the tag by which an exported record is known again
LONGEST = 6000  # characters of a parameter or tag
AT_ONCE = 1000  # metrics that a server takes in one call
IN_A_FOLDER = "MLFLOW_ALLOW_FILE_STORE"
ENDS = {"ok": "FINISHED", "interrupted": "KILLED"}  # all others are FAILED


def write(place: ExportFolder, folder: Path, records: Sequence[Record], say: Progress) -> list[str]:
    """Into a folder in MLflow's own format; returns what to tell."""
    os.environ[IN_A_FOLDER] = "true"  # MLflow would rather have a database, which the slim client cannot write
    told = write_to(place.folder.resolve().as_uri(), folder, records, say)
    return [*told, f"Look: {IN_A_FOLDER}=true mlflow ui --backend-store-uri {place.folder}"]


def write_to(uri: str, folder: Path, records: Sequence[Record], say: Progress) -> list[str]:
    """To a tracking URI; returns what to tell."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a wrong address is told at once
    with needs("mlflow"):
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    found = tracked(folder, records)
    try:
        client = MlflowClient(uri)
        known = _Known(client)
        for number, run in enumerate(found, 1):
            known.add(run)
            say("exporting runs", number, len(found))
    except (MlflowException, OSError) as error:
        first = str(error).strip().split("\n")[0]
        if "Failed to establish a new connection" in first:
            raise TrainoffError(f"{uri}: no MLflow server answers there; start one, or leave --uri out") from error
        raise TrainoffError(f"{uri}: MLflow does not take the runs: {first}") from error
    return [f", {known.present} of them there already" if known.present else ""]


class _Known:
    """The runs that are there: an experiment per study, a run per record."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self._experiments: dict[str, tuple[str, dict[str, str]]] = {}
        self.present = 0

    def add(self, run: TrackedRun) -> None:
        """Export a record, unless that has been done; what an export that broke off left is done again."""
        experiment, whole = self._experiment(run.record.study)
        key = _key(run.record)
        if key in whole:
            self.present += 1
        else:
            _write(self._client, experiment, run)

    def _experiment(self, study: str) -> tuple[str, dict[str, str]]:
        if study not in self._experiments:
            there = self._client.get_experiment_by_name(study)
            if there is not None and there.lifecycle_stage == "deleted":
                raise TrainoffError(f"MLflow's experiment `{study}` has been deleted; restore it, or purge it")
            experiment = there.experiment_id if there else self._client.create_experiment(study)
            self._experiments[study] = experiment, self._runs(experiment) if there else {}
        return self._experiments[study]

    def _runs(self, experiment: str) -> dict[str, str]:
        whole, token = {}, None
        while True:
            page = self._client.search_runs([experiment], max_results=AT_ONCE, page_token=token)
            for run in page:
                if key := run.data.tags.get(KEY):
                    if run.info.status == "RUNNING":
                        self._client.delete_run(run.info.run_id)
                    else:
                        whole[key] = run.info.run_id
            token = page.token
            if not token:
                return whole


def _key(record: Record) -> str:
    """What no other record has: two machines may run the same trial, and report to the same server."""
    return f"{record.trial_id}.{record.attempt} {record.started_at} {record.environment.get('host')}"


def _write(client: MlflowClient, experiment: str, run: TrackedRun) -> None:
    from mlflow.entities import Metric, Param

    record = run.record
    start, end = int(run.start * 1000), int(run.end * 1000)
    made = client.create_run(experiment, start, _tags(run), run.name).info.run_id
    metrics = [Metric(name, value, int(at * 1000), samples) for name, samples, at, value in run.points()]
    metrics += [Metric(name, value, end, record.samples_seen or 0) for name, value in run.figures().items()]
    client.log_batch(made, params=[Param(name, _text(value)) for name, value in run.settings().items()])
    for first in range(0, len(metrics), AT_ONCE):
        client.log_batch(made, metrics[first : first + AT_ONCE])
    _attach(client, made, record)
    client.set_terminated(made, ENDS.get(record.status, "FAILED"), end)


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


def _attach(client: MlflowClient, run_id: str, record: Record) -> None:
    """The whole record, as a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        path.write_text(json.dumps(record.to_json(), indent=1))
        client.log_artifact(run_id, str(path))


def _text(value: Any) -> str:
    return str(value)[:LONGEST]
