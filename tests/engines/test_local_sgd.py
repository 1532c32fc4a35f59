"""The parts of local SGD that need no cluster: spans, shares, the control channel, the snapshot schedule."""

import pickle
import socket
import threading
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import numpy as np
import pytest

from helpers.running import HANGS_S
from trainoff.data import Csr, Order
from trainoff.data.batch_order import share, spans
from trainoff.engines.shared import control_channel
from trainoff.engines.shared.control_channel import ControlClient, ControlServer
from trainoff.engines.shared.local_sgd import RoundResult, clock_offset, factors
from trainoff.engines.shared.shipping import in_memory
from trainoff.engines.shared.snapshots import MOST_SNAPSHOTS, SnapshotSchedule
from trainoff.engines.spark.mllib import SparkMllib
from trainoff.engines.spark.session import check_reachable, explain
from trainoff.errors import TrainoffError
from trainoff.models import Mlp, flatten, initial_weights

ORDER = Order("digits", rows=103, batch_size=10, epochs=3, seed=1)


@pytest.mark.parametrize("tau", [1, 2, 4, 11, 100])
def test_rounds_cover_every_step_once_and_end_with_the_epoch(tau):
    found = list(spans(ORDER, tau))
    steps = [step for first, last in found for step in range(first, last + 1)]
    assert steps == list(range(1, ORDER.steps + 1))
    assert all(last - first < tau for first, last in found)
    assert {11, 22, 33} <= {last for _, last in found}


def test_batch_returns_what_batches_yields():
    for step, rows in ORDER.batches():
        np.testing.assert_array_equal(ORDER.batch(step), rows)


def test_the_shares_of_all_workers_are_the_batch():
    batch = ORDER.batch(11)  # of three rows
    parts = [share(batch, worker, 4) for worker in range(4)]
    assert sorted(len(part) for part in parts) == [0, 1, 1, 1]
    np.testing.assert_array_equal(np.concatenate(parts), batch)


def test_in_memory_copies_mapped_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(4, 3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    kept = pickle.loads(pickle.dumps(in_memory(mapped)))
    assert type(kept) is np.ndarray
    sparse = Csr(np.array([0, 1, 3, 4]), np.array([5, 1, 2, 7]), np.ones(4, np.float32), 9)[1:]
    kept = pickle.loads(pickle.dumps(in_memory(sparse)))
    assert len(kept) == 2
    assert kept.columns.tolist() == [1, 2, 7]


def test_candidates_lie_around_the_learning_rate():
    assert factors(1) == [1.0]
    assert factors(4) == [0.25, 0.5, 1.0, 2.0]


def test_snapshots_are_due_at_certified_steps_at_intervals_and_at_the_end():
    schedule, seen = SnapshotSchedule(ORDER, 50), []
    for step in range(1, ORDER.steps + 1):
        samples = ORDER.samples_after(step)
        if schedule.wanted(step, samples):
            seen.append(step)
            schedule.taken(samples)
    assert seen == [1, 5, 10, 16, 20, 21, 27, 32, 33]
    long = Order("digits", rows=10_000, batch_size=1, epochs=1000, seed=1)
    assert SnapshotSchedule(long, 1)._every == long.rows * long.epochs // MOST_SNAPSHOTS


class ListWatch:
    """A watch that keeps what it is called with."""

    def __init__(self):
        self.steps, self.snapshots, self.losses = [], [], []

    def progress(self, step, loss, samples_seen=None):
        self.steps.append((step, loss))

    def due(self):
        return True

    def lost(self, who, redone):
        self.losses.append((who, redone))

    def snapshot(self, samples_seen, weights):
        self.snapshots.append((samples_seen, flatten(weights)[:2].tolist()))


def small_job(model):
    """Return the part of a job that the control channel needs."""
    return type("Job", (), {"model": model, "order": ORDER, "weights": initial_weights(model, 1)})


def test_the_control_channel_transfers_progress_and_weights():
    model, watch = Mlp((4, 3)), ListWatch()
    driver = ControlServer("127.0.0.1", lambda: None)

    def work():
        worker = ControlClient(driver.endpoint, SnapshotSchedule(ORDER, 10**6))
        worker.wait_for_start()
        for step in range(1, ORDER.steps + 1):
            worker.progress(step, 1 / step, lambda step=step: [np.full((4, 3), step), np.zeros(3)])
        worker.lost("worker-1", 10)
        worker.end({"counts": {"a": 1}})
        worker.serve_requests(lambda number: number + 1)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    driver.wait_for("ready", HANGS_S)
    reported = []
    weights, report = driver.follow(small_job(model), watch, reported.append)
    assert driver.request(41) == 42
    driver.close()
    thread.join()
    assert report == {"counts": {"a": 1}}
    assert reported == [step for step, _ in watch.steps]
    assert watch.snapshots == [(10, [1.0, 1.0]), (193, [20.0, 20.0]), (309, [33.0, 33.0])]
    assert weights[0][0, 0] == 33
    assert watch.steps[-1] == (33, 1 / 33)
    assert watch.losses == [("worker-1", 10)]


def test_the_server_stops_waiting_when_the_workers_have_failed():
    def check():
        raise TrainoffError("the workers are gone")

    driver = ControlServer("127.0.0.1", check)
    with pytest.raises(TrainoffError, match="the workers are gone"):
        driver.wait_for("ready", HANGS_S)
    driver.close()


def connect_in_thread(driver):
    """Start a client that connects from a thread and reports that it is ready."""
    clients = []

    def connect():
        clients.append(ControlClient(driver.endpoint, SnapshotSchedule(ORDER, 10**6)))
        clients[0].report_state("ready")

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    return thread


def test_clients_that_send_nothing_or_do_not_know_the_secret_are_disconnected(monkeypatch):
    wait, patience = control_channel._set_receive_timeout, iter([1])  # short for the first client, which sends nothing
    monkeypatch.setattr(
        control_channel,
        "_set_receive_timeout",
        lambda caller, seconds: wait(caller, next(patience, seconds and HANGS_S)),
    )
    driver = ControlServer("127.0.0.1", lambda: None)
    place = (driver.endpoint.host, driver.endpoint.port)
    with socket.create_connection(place):
        thread = connect_in_thread(driver)
        driver.wait_for("ready", HANGS_S)
        thread.join()
    driver.disconnect()

    rejected = []

    def guess():
        try:
            Client(place, authkey=b"a guess")
        except AuthenticationError as error:
            rejected.append(error)
        connect_in_thread(driver)

    threading.Thread(target=guess).start()
    driver.wait_for("ready", HANGS_S)
    assert rejected
    driver.close()


def test_a_new_client_that_connects_before_the_old_one_is_missed_is_accepted():
    driver = ControlServer("127.0.0.1", lambda: None)
    connect_in_thread(driver).join(0.1)
    driver.wait_for("ready", HANGS_S)
    thread = connect_in_thread(driver)
    while thread.is_alive():
        driver.check_reports()
    driver.check_reports()
    driver.disconnect()
    driver.wait_for("ready", HANGS_S)
    driver.close()


def test_the_clock_skew_of_a_worker_is_corrected():
    correct = RoundResult(1, 0.0, None, 10.2, 10.8, 0.0)
    assert clock_offset(correct, 10.0, 11.0) == 0
    assert clock_offset(replace(correct, began=99.2, ended=99.8), 10.0, 11.0) == pytest.approx(89)


@pytest.mark.parametrize("address", ["spark://127.0.0.1:1", "spark://nowhere", "spark://127.0.0.1:1,127.0.0.1:2"])
def test_a_spark_master_that_does_not_answer_is_an_error_at_once(address):
    with pytest.raises(TrainoffError, match=f"no Spark master answers at {address}; is it running"):
        check_reachable(address)


def test_masters_other_than_standalone_are_not_checked():
    check_reachable("yarn")
    check_reachable("k8s://https://nowhere")


def test_the_python_traceback_of_a_failed_spark_task_is_extracted():
    text = (
        "org.apache.spark.SparkException: Lost task 1.0 in stage 3.0 (TID 9) (127.0.0.1 executor 4): Py: Traceback "
        '(most recent call last):\n  File "task.py", line 3\nValueError: no\n\n\tat org.apache.spark.Runner.run(R:1)\n'
    )
    failure = explain(text, lambda executor: f"the log of {executor}")
    assert (failure.role, failure.log) == ("executor-4", "the log of 4")
    assert failure.said.splitlines()[-1] == "ValueError: no"
    assert "/path/to/python" in str(explain("[PYTHON_VERSION_MISMATCH] ...", str))


def test_mllib_settles_parameters_that_it_cannot_choose():
    asked = {"solver": "l-bfgs", "max_iter": 7, "activation": "relu", "learning_rate": 0.4, "optimizer": "adam"}
    settled = SparkMllib().settle(asked)
    assert settled["activation"] == "sigmoid"
    assert (settled["optimizer"], settled["epochs"], settled["learning_rate"]) == ("l-bfgs", 7, 1.0)
    assert SparkMllib().settle(asked | {"solver": "gd"})["learning_rate"] == 0.4
