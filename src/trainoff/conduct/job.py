"""From a trial to the job that an engine is given: data, model, initial weights, order, rates."""

from __future__ import annotations

from pathlib import Path

from trainoff import data
from trainoff.clusters import Cluster
from trainoff.data import Data, Order
from trainoff.engines import Job
from trainoff.models import Mlp, initial_weights, rates
from trainoff.study import Trial


def make_job(trial: Trial, cluster: Cluster, folder: Path) -> Job:
    """Everything the engine needs; the same for every engine that runs this trial."""
    loaded = rows_of(trial, data.load(trial.data))
    params = trial.params
    order = order_of(trial, loaded)
    model = model_of(trial, loaded)
    return Job(
        workload=trial.workload,
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
        targets=trial.targets,
    )


def rows_of(trial: Trial, loaded: Data) -> Data:
    """The part of the training set that the trial uses."""
    rows = trial.params.get("train_rows")
    return loaded.head(rows) if rows else loaded


def model_of(trial: Trial, loaded: Data) -> Mlp:
    """The network: the data decides its two ends, the parameters what lies between."""
    hidden = trial.params["hidden"]
    sizes = (loaded.x_train.shape[1], *hidden, loaded.classes)
    return Mlp(sizes, trial.params["activation"], trial.params["l2"])


def order_of(trial: Trial, loaded: Data) -> Order:
    """The batch order: the same for every engine that trains on these rows with this seed."""
    rows, params = len(loaded.x_train), trial.params
    return Order(loaded.identity, rows, min(params["batch_size"], rows), params["epochs"], trial.seed)
