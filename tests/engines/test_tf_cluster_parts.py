"""The parts of distributed TensorFlow that need neither TensorFlow nor a cluster."""

import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from helpers.running import HANGS_S, wait_for
from trainoff.clusters.local import free_ports
from trainoff.data import Csr, Order
from trainoff.engines import tf_cluster as base
from trainoff.engines.shared.recovery import CheckpointWriter, LostWorkers
from trainoff.engines.shared.shipping import in_file
from trainoff.engines.tf_cluster import TfAllReduce
from trainoff.engines.tf_cluster.pipeline import plan_stages, shard_spans
from trainoff.engines.tf_cluster.ps_context import place_shards
from trainoff.engines.tf_cluster.ps_modes import AsyncScheduler, BatchAssignment
from trainoff.models import Cnn, Mlp
from trainoff.runner import faults
from trainoff.runner.faults import PERIOD_S, Throttle
from trainoff.runner.sampler import Sockets

ORDER = Order("digits", rows=103, batch_size=10, epochs=2, seed=1)


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
@pytest.mark.parametrize("model", [Mlp((784, 800, 10)), Cnn((28, 28), (8, 16), 5, (64, 10))])
def test_variables_are_placed_evenly_on_the_servers(model, servers):
    whole = [[(0, shape[-1])] for shape in model.shapes]
    placed = place_shards(model.shapes, whole, servers)
    load = [0] * servers
    for shape, pieces in zip(model.shapes, placed, strict=True):
        assert [edge for span, _ in pieces for edge in span][:: len(pieces) * 2 - 1] == [0, shape[-1]]
        for (first, last), server in pieces:
            load[server] += (last - first) * int(np.prod(shape[:-1]))
    assert sum(load) == model.parameter_count
    assert max(load) <= 1.2 * model.parameter_count / servers
    assert all(load)


def test_few_workers_hold_several_layers_each():
    placed = plan_stages(Cnn((28, 28), (8, 16), 5, (64, 10)).layers, 2)
    assert [part.worker for stage in placed for part in stage.parts] == [0, 1, 1, 1]
    assert [len(stage.behind) for stage in placed] == [1, 1, 0, 0]


def test_many_workers_split_a_layers_outputs():
    placed = plan_stages(Mlp((784, 800, 10)).layers, 4)
    assert [[(part.worker, part.span) for part in stage.parts] for stage in placed] == [
        [(0, (0, 266)), (1, (266, 533)), (2, (533, 800))],
        [(3, (0, 10))],
    ]
    assert shard_spans(placed)[1] == [(0, 266), (266, 533), (533, 800)]


def test_a_worker_takes_its_own_batches_first_and_then_those_of_others():
    deal = BatchAssignment(6, 2, done={1})
    assert [deal.next(0) for _ in range(3)] == [3, 5, 2]
    deal.put_back(1, 4)
    assert [deal.next(1), deal.next(1), deal.next(1), deal.next(1)] == [4, 4, 6, None]


class CountingCondition(threading.Condition):
    """A condition that counts how often a thread begins to wait for it."""

    def __init__(self):
        super().__init__()
        self.waits = threading.Semaphore(0)

    def wait(self, timeout=None):
        self.waits.release()
        return super().wait(timeout)


def test_a_worker_waits_while_its_update_would_make_another_too_stale():
    scheduler = AsyncScheduler(ORDER, 3, lambda updates, samples: False, max_staleness=1)
    scheduler._changed = condition = CountingCondition()
    scheduler.next_batch(0)
    scheduler.next_batch(1)  # each of the two may now miss the update of the other
    waiting = threading.Thread(target=scheduler.next_batch, args=(2,), daemon=True)
    waiting.start()
    assert condition.waits.acquire(timeout=HANGS_S)
    assert list(scheduler.in_flight) == [0, 1]
    scheduler.finish(0)
    assert condition.waits.acquire(timeout=HANGS_S), "it checks again, and waits again"
    assert list(scheduler.in_flight) == [1], "the second one has missed as many as it may"
    scheduler.finish(1)
    waiting.join(HANGS_S)
    assert list(scheduler.in_flight) == [2]


def test_a_pause_begins_with_the_update_that_requests_it():
    scheduler = AsyncScheduler(ORDER, 2, lambda updates, samples: updates == 1)
    scheduler.next_batch(0)
    scheduler.next_batch(1)
    scheduler.finish(0)
    assert scheduler.paused
    assert scheduler.progress() is None
    assert not scheduler.wait(0.01)
    scheduler.finish(1)
    assert scheduler.wait(1)
    assert scheduler.progress() == (2, 20)
    scheduler.resume()
    assert scheduler.next_batch(1) == (4, 3)


def test_the_batch_of_a_lost_worker_goes_to_another():
    scheduler = AsyncScheduler(ORDER, 2, lambda updates, samples: False, done=range(1, 21))
    assert scheduler.samples == 103 + 90
    assert scheduler.next_batch(0) == (21, 21)
    scheduler.drop(0)
    assert scheduler.next_batch(0) is None
    assert scheduler.next_batch(1) == (22, 22)
    assert scheduler.finish(1)
    assert not scheduler.finish(0), "an update of a lost worker does not count"
    assert scheduler.next_batch(1) == (21, 22)
    scheduler.finish(1)
    assert scheduler.over
    assert scheduler.samples == 206
    assert scheduler.redone == 1


class Variable:
    """The part of a variable that a checkpoint needs."""

    def __init__(self, value):
        self._value = np.array(value)

    def numpy(self):
        return self._value


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path):
    checkpoints = CheckpointWriter(tmp_path / "checkpoint.npz", 10)
    assert checkpoints.load() is None
    assert [checkpoints.due(updates) for updates in (9, 10, 11)] == [False, True, True]
    checkpoints.save([Variable([1.0, 2.0]), Variable([[3.0]])], {1, 2, 3})
    assert not checkpoints.due(12)
    found = CheckpointWriter(tmp_path / "checkpoint.npz", 10).load()
    assert [part.tolist() for part in found.state] == [[1.0, 2.0], [[3.0]]]
    assert found.done == {1, 2, 3}
    assert not CheckpointWriter(tmp_path / "none.npz", 0).due(10**6)


def test_lost_workers_are_counted_with_detection_and_recovery_times(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("trainoff.engines.shared.recovery.time", SimpleNamespace(monotonic=lambda: now[0]))
    losses = LostWorkers()
    losses.recovered(now[0])
    assert losses.counts({"workers_lost": 1}) == {"workers_lost": 1}
    losses.record_loss(now[0] - 2)
    losses.add_redone(30)
    losses.add_redone(-5)  # the checkpoint was newer than the last heartbeat
    now[0] += 3
    losses.record_loss(now[0] - 0.5)  # lost again before it had recovered
    losses.recovered(now[0] + 5)
    counts = losses.counts({"steps_redone": 1, "workers_lost": 1})
    assert counts["restarts"] == 2
    assert counts["workers_lost"] == 1
    assert counts["steps_redone"] == 31
    assert counts["detection_s"] == 2.5
    assert counts["recovery_s"] == 8


def test_rows_are_mapped_from_their_files(tmp_path):
    whole = np.arange(60, dtype=np.float32).reshape(12, 5)
    np.save(tmp_path / "x.npy", whole)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    place = in_file(mapped[3:7], tmp_path, "part")
    assert place.path == str(tmp_path / "x.npy")
    np.testing.assert_array_equal(place.mapped(), whole[3:7])
    np.testing.assert_array_equal(in_file(whole[::2], tmp_path, "other").mapped(), whole[::2])
    sparse = Csr(np.array([0, 1, 3, 4]), np.array([5, 1, 2, 7]), np.ones(4, np.float32), 9)[1:]
    found = in_file(sparse, tmp_path, "sparse").mapped()
    assert found.shape == sparse.shape
    assert found[np.array([0])].columns.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("code", "log", "lost"),
    [
        (-9, "", True),
        (1, "UnavailableError: tasks are unhealthy (stopped sending heartbeats): task:2", True),
        (1, "ValueError: an error in the worker", False),
        (None, "warning: task:2 stopped sending heartbeats", False),
    ],
)
def test_a_killed_or_unresponsive_worker_is_lost_and_a_failed_one_is_not(monkeypatch, code, log, lost):
    monkeypatch.setattr(base, "EXPLAIN_S", HANGS_S if lost else 0.1)
    engine = TfAllReduce()
    engine._processes = [SimpleNamespace(exit_code=code, tail=lambda: log)]
    assert engine._process_was_killed() == lost


def test_free_ports_are_different():
    assert len(set(free_ports(["127.0.0.1"] * 5))) == 5


class FakeEvent:
    """In the place of a throttle's event: its clock advances only by waits, and it is set after `lasts` seconds."""

    def __init__(self, lasts):
        self.now, self._lasts = 0.0, lasts

    def wait(self, seconds):
        self.now += seconds
        return self.now > self._lasts


def test_a_throttled_process_runs_for_its_share_of_the_time(monkeypatch):
    throttle, sent = Throttle(lambda: [7], 0.25), []
    throttle._end = clock = FakeEvent(100 * PERIOD_S)
    monkeypatch.setattr(faults, "send", lambda pids, number: sent.append((clock.now, pids, number)))
    throttle._run()
    assert [(pids, number) for _, pids, number in sent] == [([7], signal.SIGSTOP), ([7], signal.SIGCONT)] * 100
    stops, goes = [at for at, _, _ in sent[::2]], [at for at, _, _ in sent[1::2]]
    stopped = sum(go - stop for stop, go in zip(stops, goes, strict=True))
    assert stopped == pytest.approx(0.75 * 100 * PERIOD_S)
    assert max(go - stop for stop, go in zip(stops, goes, strict=True)) < PERIOD_S, "shorter than a step of training"


def test_a_throttled_process_stops_and_continues_until_it_is_released():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        process = psutil.Process(busy.pid)
        throttle = Throttle(lambda: [busy.pid], 0.25)
        throttle.start()
        for _ in range(3):
            wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
            spent = process.cpu_times().user
            wait_for(lambda spent=spent: process.cpu_times().user > spent)
        throttle.release()
        assert process.status() != psutil.STATUS_STOPPED
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.skipif(not hasattr(socket, "AF_NETLINK"), reason="only Linux counts bytes by socket")
def test_the_kernel_reports_bytes_by_process():
    sockets = Sockets()

    def traffic():
        """Return what this process has sent and received since `before`, without what other tests have."""
        sockets.update({os.getpid(): "worker-0"})
        return tuple(now - then for now, then in zip(sockets.by_role().get("worker-0", (0, 0)), before, strict=True))

    before = (0, 0)
    before = traffic()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            client.sendall(b"x" * 100_000)
            received = 0
            while received < 100_000:
                received += len(peer.recv(1 << 16))
            wait_for(lambda: min(traffic()) >= 100_000)  # the last acknowledgement has arrived
            while_open = traffic()
    for sent, got in (while_open, traffic()):
        assert 100_000 <= sent < 110_000
        assert 100_000 <= got < 110_000
