"""Make the job of a trial, which its engine is given: data, model, initial weights, batch order, learning rates."""

from __future__ import annotations

import sys
from pathlib import Path

from trainoff import data
from trainoff.clusters import Attached, Cluster, ray, spark
from trainoff.clusters.lab import cluster as lab
from trainoff.clusters.lab.cluster import LabCluster
from trainoff.clusters.ssh.client import Ssh
from trainoff.clusters.ssh.cluster import Hosts, HostsPlan
from trainoff.data import Data, Order
from trainoff.engines import Job
from trainoff.errors import TrainoffError
from trainoff.models import DataShape, Model, build, initial_weights, rates
from trainoff.study import Trial
from trainoff.study.machines import GIB

AGENT = "trainoff.runner.remote_agent"
PRIVATE_FILES = ("*.json", "lock", "log.txt", "events*", "snapshot-*", "predictions.npy", "page-*",
                 *spark.PRIVATE_FILES, *ray.PRIVATE_FILES)  # fmt: skip  # of a trial, not copied to other machines


def make_job(trial: Trial, cluster: Cluster, folder: Path) -> Job:
    """Return the job, which is the same for every engine that runs the trial."""
    loaded = rows_of(trial, data.load(trial.data))
    params, order, model = trial.params, order_of(trial, loaded), model_of(trial, loaded)
    return Job(
        data=loaded,
        model=model,
        weights=initial_weights(model, trial.seed),
        order=order,
        rates=rates(params["schedule"], params["learning_rate"], order.steps),
        params=params,
        mode=trial.mode,
        workers=trial.workers,
        cores=trial.cores,
        memory_gb=trial.memory_gb,
        cluster=cluster,
        folder=folder,
    )


def make_cluster(trial: Trial, folder: Path) -> Cluster:
    """Return the cluster on which the trial runs."""
    if trial.attached:
        return Attached(trial.address, trial.properties, folder)
    if trial.emulated:
        return LabCluster(lab.LabPlan.read(folder), folder)
    if trial.cluster == "hosts":
        params, memory = trial.params, trial.memory_gb
        ssh = Ssh(params.get("python", sys.executable), params.get("ssh_config"))
        limit = int(memory * GIB) if memory else None
        plan = HostsPlan(params["hosts"], ssh, AGENT, trial.cores, limit, params.get("here"), PRIVATE_FILES)
        return Hosts(plan, folder)
    return Cluster(trial.workers, folder)


def rows_of(trial: Trial, loaded: Data) -> Data:
    """Return the part of the training set that the trial uses."""
    rows = trial.params.get("train_rows")
    return loaded.head(rows) if rows else loaded


def model_of(trial: Trial, loaded: Data) -> Model:
    """Return the trial's model for the data; raise a `TrainoffError` if the data does not fit it or the metric."""
    if trial.metric == "auc" and loaded.classes != 2:
        raise TrainoffError(f"auc is a metric of two classes, and {loaded.name} has {loaded.classes}; use accuracy")
    return build(trial.model, trial.params, DataShape.of(loaded))


def order_of(trial: Trial, loaded: Data) -> Order:
    """Return the batch order, which is the same for every engine that trains on these rows with this seed."""
    rows, params = len(loaded.x_train), trial.params
    whole = params["optimizer"] == "l-bfgs"  # every iteration sees all rows
    batch = rows if whole else min(params["batch_size"], rows)
    return Order(loaded.identity, rows, batch, params["epochs"], trial.seed)
