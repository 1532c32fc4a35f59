"""The engines on Spark in real trials: clusters that a trial starts, kills, existing clusters."""

import json
import re

import polars
import pytest

from helpers.running import LONG, only_record, records, run_and_signal, study, survivors, trainoff
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


def run_all(folder, *engines, more):
    """Run engines in one study and return their records by engine."""
    done = trainoff("run", study(folder, *engines, more=more), "--out", folder / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert survivors(folder) == []
    assert "WARN" not in done.stdout + done.stderr, "Spark's messages belong in the log"
    return {record["engine"]: record for record in records(folder / "out")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with spaces in its name, as users have them."""
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
def test_one_step_per_round_is_exact(trained, engine):
    assert trained[engine]["equivalence"]["verdict"] == "exact"


@pytest.mark.parametrize("engine", ["spark-average", "spark-sklearn", "spark-torch"])
def test_a_round_transfers_little_more_than_the_weights(trained, engine):
    counts = trained[engine]["counts"]
    assert 1 <= counts["bytes_per_round"] / counts["least_bytes_per_round"] <= 1.2


def test_mllib_is_different_by_design(trained):
    record = trained["spark-mllib"]
    assert record["equivalence"]["verdict"] == "different by design"
    assert "sigmoid" in record["equivalence"]["reason"]
    assert record["params"]["activation"] == record["model"]["activation"] == "sigmoid"
    assert record["notes"]["blas"].startswith("dev.ludovic.netlib")
    assert record["counts"]["iterations"] == 8
    assert record["counts"]["evaluations"] >= 8


def objectives(folder, engine) -> list[float]:
    """Return the training losses that an engine reported, by iteration."""
    (curve,) = folder.glob(f"out/tiny/{engine}-*/curve.parquet")
    reported = polars.read_parquet(curve).filter(polars.col("accuracy").is_null() | (polars.lit(engine) == "numpy"))
    return reported.sort("step")["objective"].to_list()


def test_mllib_minimises_the_same_loss_as_scipy(trained, folder):
    """Both start with the same loss, and both lower it, each with its own line search.

    MLlib averages losses by blocks, so the blocks must be equal for its loss to be the mean over the rows.
    """
    rows, model = data.load("digits").head(300), Mlp((64, 40, 10), "sigmoid")
    start, _ = loss_and_gradient(model, initial_weights(model, 1), rows.x_train, rows.y_train)
    ours, theirs = objectives(folder, "numpy"), objectives(folder, "spark-mllib")
    assert theirs[0] == pytest.approx(start, rel=1e-5)
    assert ours[-1] < start
    assert theirs[-1] < start


@pytest.mark.soak
def test_other_modes_and_solvers(tmp_path):
    found = run_all(tmp_path, "spark-sklearn", "spark-mllib", more=OTHERS)
    search, gradient_descent = found["spark-sklearn"], found["spark-mllib"]
    assert search["counts"]["candidates"] == 3
    assert search["samples_seen"] == 3 * 270 * 2
    assert "a search" in search["equivalence"]["reason"]
    assert gradient_descent["counts"]["iterations"] == 5
    assert "gradient descent" in gradient_descent["equivalence"]["reason"]
    (curve,) = tmp_path.glob("out/tiny/spark-mllib-*/curve.parquet")
    assert polars.read_parquet(curve)["accuracy"].count() == 3, "a snapshot after iterations 2, 4 and 5"


def test_the_log_has_the_output_of_every_jvm(trained, folder):
    (log,) = folder.glob("out/tiny/spark-average-*/log.txt")
    text = log.read_text()
    for part in ("==== master ====", "==== worker-0 ====", "==== worker-1/app-"):
        assert part in text


def run_and_kill_jvm(folder, engine, victim, replaced=False):
    """Return the record of a training in which a JVM was killed."""
    return run_and_signal(folder, study(folder, engine, more=LONG), lambda: find_jvm(victim, folder), replaced=replaced)


@pytest.mark.parametrize(
    "victim", ["executor", *(pytest.param(each, marks=pytest.mark.soak) for each in ("driver", "worker", "master"))]
)
def test_the_record_after_a_process_is_killed(tmp_path, victim):
    record = run_and_kill_jvm(tmp_path, "held-spark-average", victim, replaced=victim == "executor")
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
def test_the_training_fails_when_one_member_of_the_process_group_dies(tmp_path):
    record = run_and_kill_jvm(tmp_path, "held-spark-torch", "executor")
    assert record["status"] == "crashed"
    assert record["phase"] == "train"
    assert "closed its connection" not in record["reason"], "it should say why"


@pytest.mark.soak  # test_local_sgd.py reads what Spark reports of it
def test_a_failed_task_is_in_the_record(tmp_path):
    done = trainoff("run", study(tmp_path, "clumsy", more="workers = 2"), "--out", tmp_path / "out")
    assert done.returncode == 1
    record = only_record(tmp_path / "out")
    assert record["status"] == "start-failed"
    assert record["phase"] == "ship"
    assert re.fullmatch(r"executor-\d: LookupError: no worker can be made", record["reason"])
    assert "in make_learner" in record["traceback"]
    assert record["log_tail"]


def test_an_existing_cluster_is_used_by_its_address(tmp_path, existing):
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
    assert secret not in json.dumps(record), "a secret does not belong in a record"
    assert "master" not in record["cpu_s_by_role"]


@pytest.mark.soak
def test_an_existing_cluster_that_is_too_small_is_an_error(tmp_path, existing):
    master, secret = existing
    path = study(tmp_path, "spark-average", more=ATTACH.format(workers=3, master=master, secret=secret))
    trainoff("run", path, "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["status"] == "start-failed"
    assert record["reason"].startswith("the cluster has room for 2 of 3 executors of 1 cores and 1024 MB each")
