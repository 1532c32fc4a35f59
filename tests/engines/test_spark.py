"""Spark for real: clusters that start by themselves, four engines on them, kills, and nothing left behind."""

import json
import re

import polars
import pytest

from helpers.running import only_record, records, run_and_signal, study, survivors, trainoff
from helpers.spark import ATTACH, find_jvm
from trainoff import data
from trainoff.models import Mlp, initial_weights, loss_and_gradient

pytestmark = [pytest.mark.java, pytest.mark.namespace, pytest.mark.cluster]

ENGINES = ("spark-average", "spark-sklearn", "spark-torch", "spark-mllib")
WIDE = """workers = 2
mode = "sync"
optimizer = "sgd"
batch_size = 60
hidden = [2000]
max_iter = 8
block_size = 150
[engine.spark-mllib]
hidden = [40]
[engine.numpy]
mode = "single"
optimizer = "l-bfgs"
activation = "sigmoid"
hidden = [40]
[grid]
epochs = [4]
"""
OTHERS = """workers = 2
batch_size = 60
hidden = [20]
max_iter = 5
solver = "gd"
chunk = 2
[engine.spark-sklearn]
mode = "search"
candidates = 3
[engine.spark-mllib]
workers = 1
"""
LONG = """workers = 2
mode = "sync"
optimizer = "sgd"
batch_size = 50
hidden = [400]
snapshot_every = 100000
[grid]
epochs = [20]
"""


def run_all(folder, *engines, more):
    """The records of some engines, by engine."""
    done = trainoff("run", study(folder, *engines, more=more), "--out", folder / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert survivors(folder) == []
    assert "WARN" not in done.stdout + done.stderr, "Spark's noise belongs into the log"
    return {record["engine"]: record for record in records(folder / "out")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with spaces in its name, as many a user's."""
    return tmp_path_factory.mktemp("spark and more")


@pytest.fixture(scope="module")
def trained(folder):
    """All four engines on a cluster of two workers, and scipy's L-BFGS."""
    return run_all(folder, *ENGINES, "numpy", more=WIDE)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_trains_on_two_workers(trained, engine):
    record = trained[engine]
    assert record["status"] == "ok", record["reason"]
    assert record["workers"] == 2
    assert {"driver", "master", "worker-0", "worker-1"} <= record["cpu_s_by_role"].keys()
    for phase in ("import", "cluster_start", "ship", "train", "test", "teardown"):
        assert record["phases_s"][phase] > 0, phase
    assert "gc_s" in record["counts"]


@pytest.mark.parametrize("engine", ["spark-average", "spark-sklearn", "spark-torch"])
def test_one_step_a_round_is_the_reference(trained, engine):
    assert trained[engine]["equivalence"]["verdict"] == "exact"


@pytest.mark.parametrize("engine", ["spark-average", "spark-sklearn", "spark-torch"])
def test_a_round_moves_little_more_than_the_weights(trained, engine):
    counts = trained[engine]["counts"]
    assert 1 <= counts["bytes_per_round"] / counts["least_bytes_per_round"] <= 1.2


def test_mllib_says_what_it_is(trained):
    record = trained["spark-mllib"]
    assert record["equivalence"]["verdict"] == "different by design"
    assert "sigmoid" in record["equivalence"]["reason"]
    assert record["params"]["activation"] == record["model"]["activation"] == "sigmoid"
    assert record["notes"]["blas"].startswith("dev.ludovic.netlib")
    assert record["counts"]["iterations"] == 8
    assert record["counts"]["evaluations"] >= 8


def objectives(folder, engine) -> list[float]:
    """The training losses that an engine told, in the order of the iterations."""
    (curve,) = folder.glob(f"out/tiny/{engine}-*/curve.parquet")
    told = polars.read_parquet(curve).filter(polars.col("accuracy").is_null() | (polars.lit(engine) == "numpy"))
    return told.sort("step")["objective"].to_list()


def test_mllib_solves_the_problem_that_scipy_solves(trained, folder):
    """From the same weights on the same rows; then each searches along its lines in its own way, and both get lower.

    MLlib means its losses by blocks, so the blocks must be equal for its loss to be the mean over the rows.
    """
    rows, model = data.load("digits").head(300), Mlp((64, 40, 10), "sigmoid")
    begin, _ = loss_and_gradient(model, initial_weights(model, 1), rows.x_train, rows.y_train)
    ours, theirs = objectives(folder, "numpy"), objectives(folder, "spark-mllib")
    assert theirs[0] == pytest.approx(begin, rel=1e-5)
    assert ours[-1] < begin
    assert theirs[-1] < begin


@pytest.mark.soak
def test_other_modes_and_solvers(tmp_path):
    found = run_all(tmp_path, "spark-sklearn", "spark-mllib", more=OTHERS)
    search, descent = found["spark-sklearn"], found["spark-mllib"]
    assert search["counts"]["candidates"] == 3
    assert search["samples_seen"] == 3 * 270 * 2
    assert "a search" in search["equivalence"]["reason"]
    assert descent["counts"]["iterations"] == 5
    assert "gradient descent" in descent["equivalence"]["reason"]
    (curve,) = tmp_path.glob("out/tiny/spark-mllib-*/curve.parquet")
    assert polars.read_parquet(curve)["accuracy"].count() == 3, "a snapshot after iterations 2, 4 and 5"


def test_the_log_has_what_every_jvm_said(trained, folder):
    (log,) = folder.glob("out/tiny/spark-average-*/log.txt")
    text = log.read_text()
    for part in ("==== master ====", "==== worker-0 ====", "==== worker-1/app-"):
        assert part in text


def kill_in_mid_training(folder, engine, victim, replaced=False):
    """The record of a training during which somebody was killed, after nothing of it was left."""
    return run_and_signal(folder, study(folder, engine, more=LONG), lambda: find_jvm(victim, folder), replaced=replaced)


@pytest.mark.parametrize(
    "victim", ["executor", *(pytest.param(each, marks=pytest.mark.soak) for each in ("driver", "worker", "master"))]
)
def test_what_becomes_of_a_training_when_something_is_killed(tmp_path, victim):
    record = kill_in_mid_training(tmp_path, "held-spark-average", victim, replaced=victim == "executor")
    if victim == "driver":
        assert record["status"] == "crashed"
        assert "driver" in record["reason"]
        return
    assert record["status"] == "ok", record["reason"]
    if victim in ("executor", "worker"):
        assert record["counts"]["executors_lost"] >= 1
    if victim == "executor":
        assert record["counts"]["recovery_s"] > 0


@pytest.mark.soak
def test_a_process_group_ends_with_its_member(tmp_path):
    record = kill_in_mid_training(tmp_path, "held-spark-torch", "executor")
    assert record["status"] == "crashed"
    assert record["phase"] == "train"
    assert "closed its connection" not in record["reason"], "it should say why"


@pytest.mark.soak  # what Spark says of it is read in tests/engines/test_local_sgd.py
def test_a_task_that_fails_reaches_the_record(tmp_path):
    done = trainoff("run", study(tmp_path, "clumsy", more="workers = 2"), "--out", tmp_path / "out")
    assert done.returncode == 1
    record = only_record(tmp_path / "out")
    assert record["status"] == "start-failed"
    assert record["phase"] == "ship"
    assert re.fullmatch(r"executor-\d: LookupError: no worker can be made", record["reason"])
    assert "in make_learner" in record["traceback"]
    assert record["log_tail"]


def test_an_existing_cluster_is_used_by_naming_it(tmp_path, existing):
    master, secret = existing
    path = study(tmp_path, "spark-average", more=ATTACH.format(workers=2, master=master, secret=secret))
    done = trainoff("run", path, "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert done.returncode == 0, record["reason"]
    assert record["cluster"] == "attach"
    assert record["equivalence"]["verdict"] == "exact"
    assert record["isolation"]["own_network"] is False
    assert record["network_bytes"] is None
    assert record["notes"]["executors"].startswith("2 executors of 1 cores and 1024 MB on ")
    assert secret not in json.dumps(record), "a secret does not belong into a record"
    assert "master" not in record["cpu_s_by_role"]


@pytest.mark.soak
def test_an_existing_cluster_may_have_too_little_room(tmp_path, existing):
    master, secret = existing
    path = study(tmp_path, "spark-average", more=ATTACH.format(workers=3, master=master, secret=secret))
    trainoff("run", path, "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["status"] == "start-failed"
    assert record["reason"].startswith("the cluster has room for 2 of 3 executors of 1 cores and 1024 MB each")
