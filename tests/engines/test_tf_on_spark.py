"""tf-on-spark in real trials: both feeds, kills, hardly any rows, an existing cluster."""

import json
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from helpers.running import (
    HANGS_S,
    assert_nothing_listens_outside,
    assert_nothing_survives,
    assert_soon_empty,
    command,
    environment,
    members,
    only_record,
    records,
    run_and_signal,
    study,
    survivors,
    trainoff,
    wait_until,
)
from helpers.spark import ATTACH, find_jvm

pytestmark = [pytest.mark.java, pytest.mark.namespace, pytest.mark.cluster]

ENGINE = "tf-on-spark"
CASES = """workers = 2
optimizer = "sgd"
batch_size = 60
hidden = [20]
[[case]]
mode = "sync"
feed = "spark"
[[case]]
mode = "async"
feed = "spark"
batch_size = 4
[[case]]
mode = "model-parallel"
feed = "spark"
"""
BOARD = """workers = 2
optimizer = "sgd"
batch_size = 50
hidden = [400]
mode = "sync"
feed = "tensorflow"
tensorboard = true
[grid]
epochs = [20]
"""
LAYERS = """workers = 2
optimizer = "sgd"
mode = "model-parallel"
ps = 2
"""
LONG = """workers = 2
optimizer = "sgd"
batch_size = 50
hidden = [400]
feed = "{feed}"
mode = "{mode}"
[grid]
epochs = [20]
"""
ONE_ROW = """workers = 2
feed = "spark"
optimizer = "sgd"
batch_size = 2
[grid]
train_rows = [1]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The records of trials with rows that Spark pushes, by mode and feed."""
    folder = tmp_path_factory.mktemp("tensorflow on spark")
    done = trainoff("run", study(folder, ENGINE, more=CASES), "--out", folder / "out")
    assert survivors(folder) == []
    assert "WARN" not in done.stdout + done.stderr, "messages of Spark and TensorFlow belong in the log"
    return {(record["mode"], record["params"]["feed"]): record for record in records(folder / "out")}


@dataclass(frozen=True)
class TensorBoardVisit:
    """What TensorBoard showed of a training while it ran, and the training's record."""

    tags: dict[str, list[str]]  # by run
    stayed: bool  # whether TensorBoard answered after the training
    record: dict[str, Any]
    events: Path  # the event file that TensorBoard read


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    """A training that reads its rows itself, with TensorBoard open during it."""
    folder = tmp_path_factory.mktemp("tensorboard")
    path, output, held = study(folder, f"held-{ENGINE}", more=BOARD), folder / "output.txt", folder / "held"
    held.mkdir()
    waits = environment(HELD=str(held), HELD_AT="60")
    with output.open("wb") as sink:
        argv = command("run", path, "--out", folder / "out", "--set", f"stall_s={4 * HANGS_S}")
        run = subprocess.Popen(argv, env=waits, stdout=sink)

    def shown():
        return re.search(r"^tensorboard: (http://127\.0\.0\.1:\d+)$", output.read_text(), re.MULTILINE)

    wait_until(shown, run)
    page = shown()[1]

    tags = {}

    def scalars():
        with suppress(OSError), urlopen(f"{page}/data/plugin/scalars/tags", timeout=HANGS_S) as response:
            tags.update(json.load(response))
        return any({"loss", "samples_seen"} <= set(names) for names in tags.values())

    wait_until(scalars, run)
    (held / "released").touch()
    run.wait(HANGS_S)
    assert_nothing_survives(folder)
    stayed = is_tensorboard(page)
    (events,) = folder.glob("out/tiny/*/tensorboard/events.out.tfevents.*")
    return TensorBoardVisit(tags, stayed, only_record(folder / "out"), events)


def test_feeding_by_tensorflow_is_exact(visit):
    record = visit.record
    assert record["status"] == "ok", record["reason"]
    assert record["equivalence"]["verdict"] == "exact"


def is_tensorboard(page):
    """Return whether TensorBoard answers at a URL; another program may use its port by now."""
    with suppress(OSError, HTTPException), urlopen(page, timeout=5) as response:
        return b"TensorBoard" in response.read()
    return False


def test_tensorboard_can_be_opened_while_it_trains(visit):
    assert {"loss", "samples_seen"} <= set(next(iter(visit.tags.values())))
    assert not visit.stayed
    assert visit.events.stat().st_size > 0


@pytest.mark.soak
def test_layers_on_different_executors_are_exact(tmp_path):
    trainoff("run", study(tmp_path, ENGINE, more=LAYERS), "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["status"] == "ok", record["reason"]
    assert record["equivalence"]["verdict"] == "exact"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_row_that_spark_pushes_is_used(trained, mode):
    record = trained[mode, "spark"]
    assert record["status"] == "ok", record["reason"]
    assert record["equivalence"]["verdict"] == "different by design"
    assert record["samples_seen"] == 2 * 300
    assert record["counts"]["fed_bytes"] == 2 * 300 * (64 * 4 + 8), "16 levels of grey are not multiples of 1/255"
    assert set(record["breakdowns"]["feeding_s"]) == {"worker-0", "worker-1"}
    assert min(record["breakdowns"]["feeding_s"].values()) > 0
    assert record["notes"]["feed"].startswith("partitions of 150, 150 rows")


def test_asynchronous_workers_report_their_staleness(trained):
    record = trained["async", "spark"]
    assert sum(record["breakdowns"]["staleness"].values()) == sum(record["breakdowns"]["updates"].values()) == 150


def test_tensorflows_processes_have_their_own_roles(visit, trained):
    synchronous, other = visit.record, trained["async", "spark"]
    assert {"driver", "master", "worker-0", "tf-worker-0", "tf-worker-1"} <= synchronous["cpu_s_by_role"].keys()
    assert {"tf-chief", "tf-ps-0", "tf-worker-1"} <= other["cpu_s_by_role"].keys()
    for phase in ("cluster_start", "ship", "train", "test", "teardown"):
        assert synchronous["phases_s"][phase] > 0, phase


def test_a_feed_without_a_purpose_is_refused(trained):
    record = trained["model-parallel", "spark"]
    assert record["status"] == "unsupported"
    assert "only the first worker needs rows" in record["reason"]


def kill(folder, feed, mode, find):
    """Return the record of a training in which a process was killed."""
    path = study(folder, f"held-{ENGINE}", more=LONG.format(feed=feed, mode=mode))
    record = run_and_signal(folder, path, find)
    assert record["status"] == "crashed"
    assert record["phase"] == "train"
    return record


def process(folder, role):
    """Return the TensorFlow process of a role; it must not listen outside of its trial's network."""
    (found,) = members(folder, role)
    assert_nothing_listens_outside(found)
    return found


def test_a_tensorflow_process_is_killed(tmp_path):
    record = kill(tmp_path, "spark", "sync", lambda: process(tmp_path, "tf-worker-1"))
    assert record["reason"] == "tf-worker-1: TensorFlow's process ended with code -9"


@pytest.mark.soak
@pytest.mark.parametrize(("role", "feed"), [("tf-ps-0", "tensorflow"), ("tf-chief", "spark"), ("tf-worker-1", "spark")])
def test_a_process_of_asynchronous_training_is_killed(tmp_path, role, feed):
    record = kill(tmp_path, feed, "async", lambda: process(tmp_path, role))
    assert record["reason"] == f"{role}: TensorFlow's process ended with code -9"


@pytest.mark.soak
@pytest.mark.parametrize(("victim", "feed"), [("executor", "spark"), ("driver", "tensorflow")])
def test_a_part_of_spark_is_killed(tmp_path, victim, feed):
    record = kill(tmp_path, feed, "sync", lambda: find_jvm(victim, tmp_path))
    assert re.match(
        {"executor": r"executor-\d: Spark lost executor \d", "driver": "driver: "}[victim], record["reason"]
    )


def test_an_exception_in_the_training_is_in_the_record_with_its_traceback(tmp_path):
    done = trainoff("run", study(tmp_path, "stumbler", more="workers = 2\nfeed = 'spark'"), "--out", tmp_path / "out")
    assert done.returncode == 1
    assert_nothing_survives(tmp_path)
    record = only_record(tmp_path / "out")
    assert (record["status"], record["phase"]) == ("crashed", "compile")
    assert re.fullmatch(r"tf-worker-\d: LookupError: no such parameter", record["reason"])
    assert "in train_on_feed" in record["log_tail"]


@pytest.mark.soak
def test_one_row_and_an_empty_partition(tmp_path):
    done = trainoff("run", study(tmp_path, ENGINE, more=ONE_ROW), "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert done.returncode == 0, record["reason"]
    assert record["samples_seen"] == 2
    assert record["notes"]["feed"].startswith("partitions of 1, 0 rows")


@pytest.mark.soak  # test_spark.py uses an existing cluster in every run
def test_two_clusters_in_one_application_on_an_existing_spark_cluster(tmp_path, existing):
    master, secret = existing
    more = ATTACH.format(workers=2, master=master, secret=secret).replace('mode = "sync"', 'feed = "spark"')
    done = trainoff("run", study(tmp_path, "twice", more=more), "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert done.returncode == 0, record["reason"]
    assert record["cluster"] == "attach"
    assert record["isolation"]["own_network"] is False
    assert secret not in json.dumps(record), "a secret does not belong in a record"
    assert "master" not in record["cpu_s_by_role"]
    first, second = record["notes"]["processes"].split(" then ")
    assert first == second, "the second cluster has left no process of the first"
    assert_soon_empty(lambda: of_executors(tmp_path))  # an executor may end after its application


def of_executors(folder):
    """Return the Python processes that executors below a folder have started."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command_line, place = " ".join(process.info["cmdline"] or []), process.info["cwd"] or ""
        if place.startswith(str(folder)) and ("tf_on_spark.node" in command_line or "pyspark.daemon" in command_line):
            found.append(f"{process.pid} {command_line}")
    return found


@pytest.mark.soak
def test_more_executors_than_an_existing_cluster_can_hold_is_an_error(tmp_path, existing):
    master, secret = existing
    more = ATTACH.format(workers=2, master=master, secret=secret).replace('mode = "sync"', 'mode = "async"')
    trainoff("run", study(tmp_path, ENGINE, more=more), "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["status"] == "start-failed"
    assert record["reason"].startswith("the cluster has room for 2 of 4 executors of 1 cores")
