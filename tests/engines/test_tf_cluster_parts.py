"""The parts of distributed TensorFlow that need neither TensorFlow nor a cluster."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from helpers.running import HANGS_S
from trainoff.clusters.local import free_ports
from trainoff.data import Csr, Order
from trainoff.engines import tf_cluster as base
from trainoff.engines.shared.recovery import CheckpointWriter, LostWorkers
from trainoff.engines.shared.shipping import in_file
from trainoff.engines.tf_cluster import TfAllReduce
from trainoff.engines.tf_cluster.pipeline import spans, stages
from trainoff.engines.tf_cluster.ps_context import place
from trainoff.engines.tf_cluster.ps_modes import AsyncScheduler, BatchAssignment
from trainoff.models import Cnn, Mlp
from trainoff.runner import faults
from trainoff.runner.faults import PERIOD_S, Throttle
from trainoff.runner.sampler import Sockets

ORDER = Order("digits", rows=103, batch_size=10, epochs=2, seed=1)


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
@pytest.mark.parametrize("model", [Mlp((784, 800, 10)), Cnn((28, 28), (8, 16), 5, (64, 10))])
def test_variables_lie_evenly_on_the_servers_and_none_is_lost(model, servers):
    whole = [[(0, shape[-1])] for shape in model.shapes]
    placed = place(model.shapes, whole, servers)
    load = [0] * servers
    for shape, pieces in zip(model.shapes, placed, strict=True):
        assert [edge for span, _ in pieces for edge in span][:: len(pieces) * 2 - 1] == [0, shape[-1]]
        for (first, last), server in pieces:
            load[server] += (last - first) * int(np.prod(shape[:-1]))
    assert sum(load) == model.parameters
    assert max(load) <= 1.2 * model.parameters / servers
    assert all(load)


def test_layers_lie_together_where_workers_are_few():
    placed = stages(Cnn((28, 28), (8, 16), 5, (64, 10)).layers, 2)
    assert [part.worker for stage in placed for part in stage.parts] == [0, 1, 1, 1]
    assert [stage.pool for stage in placed] == [True, True, False, False]


def test_outputs_are_divided_where_workers_are_many():
    placed = stages(Mlp((784, 800, 10)).layers, 4)
    assert [[(part.worker, part.span) for part in stage.parts] for stage in placed] == [
        [(0, (0, 266)), (1, (266, 533)), (2, (533, 800))],
        [(3, (0, 10))],
    ]
    assert spans(placed)[1] == [(0, 266), (266, 533), (533, 800)]


def test_a_worker_takes_its_own_part_first_and_then_helps():
    deal = BatchAssignment(6, 2, done={1})
    assert [deal.next(0) for _ in range(3)] == [3, 5, 2]
    deal.put_back(1, 4)
    assert [deal.next(1), deal.next(1), deal.next(1), deal.next(1)] == [4, 4, 6, None]


def until(condition):
    """Wait for what happens; fails if it does not."""
    end = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


class Queue(threading.Condition):
    """Tells each time that somebody begins to wait."""

    def __init__(self):
        super().__init__()
        self.came = threading.Semaphore(0)

    def wait(self, timeout=None):
        self.came.release()
        return super().wait(timeout)


def test_nobody_passes_the_gate_who_would_make_another_too_stale():
    scheduler = AsyncScheduler(ORDER, 3, lambda updates, samples: False, most_stale=1)
    scheduler._change = queue = Queue()
    scheduler.take(0)
    scheduler.take(1)  # the first one may now miss this update, and this one the first's
    waiting = threading.Thread(target=scheduler.take, args=(2,), daemon=True)
    waiting.start()
    assert queue.came.acquire(timeout=HANGS_S)
    assert list(scheduler.flying) == [0, 1]
    scheduler.done(0)
    assert queue.came.acquire(timeout=HANGS_S), "it looks again, and waits again"
    assert list(scheduler.flying) == [1], "the second one has missed as many as it may"
    scheduler.done(1)
    waiting.join(HANGS_S)
    assert list(scheduler.flying) == [2]


def test_a_pause_begins_with_the_update_that_wants_it():
    scheduler = AsyncScheduler(ORDER, 2, lambda updates, samples: updates == 1)
    scheduler.take(0)
    scheduler.take(1)
    scheduler.done(0)
    assert scheduler.paused
    assert scheduler.counted() is None
    assert not scheduler.wait(0.01)
    scheduler.done(1)
    assert scheduler.wait(1)
    assert scheduler.counted() == (2, 20)
    scheduler.go_on()
    assert scheduler.take(1) == (4, 3)


def test_the_batch_of_a_lost_worker_is_made_by_another():
    scheduler = AsyncScheduler(ORDER, 2, lambda updates, samples: False, done=range(1, 21))
    assert scheduler.samples == 103 + 90
    assert scheduler.take(0) == (21, 21)
    scheduler.lose(0)
    assert scheduler.take(0) is None
    assert scheduler.take(1) == (22, 22)
    assert scheduler.done(1)
    assert not scheduler.done(0), "what a lost worker still says does not count"
    assert scheduler.take(1) == (21, 22)
    scheduler.done(1)
    assert scheduler.over
    assert scheduler.samples == 206
    assert scheduler.redone == 1


class Held:
    """As much of a variable as a checkpoint needs."""

    def __init__(self, value):
        self._value = np.array(value)

    def numpy(self):
        return self._value


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    checkpoints = CheckpointWriter(tmp_path / "checkpoint.npz", 10)
    assert checkpoints.load() is None
    assert [checkpoints.due(updates) for updates in (9, 10, 11)] == [False, True, True]
    checkpoints.save([Held([1.0, 2.0]), Held([[3.0]])], {1, 2, 3})
    assert not checkpoints.due(12)
    found = CheckpointWriter(tmp_path / "checkpoint.npz", 10).load()
    assert [part.tolist() for part in found.state] == [[1.0, 2.0], [[3.0]]]
    assert found.done == {1, 2, 3}
    assert not CheckpointWriter(tmp_path / "none.npz", 0).due(10**6)


def test_losses_are_told_only_where_there_were_some(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("trainoff.engines.shared.recovery.time", SimpleNamespace(monotonic=lambda: now[0]))
    losses = LostWorkers()
    losses.recovered(now[0])
    assert losses.counts({"workers_lost": 1}) == {"workers_lost": 1}
    losses.record_loss(now[0] - 2)
    losses.add_redone(30)
    losses.add_redone(-5)  # the checkpoint was newer than the last sign of life
    now[0] += 3
    losses.record_loss(now[0] - 0.5)  # lost again before it had recovered
    losses.recovered(now[0] + 5)
    told = losses.counts({"steps_redone": 1, "workers_lost": 1})
    assert told["restarts"] == 2
    assert told["workers_lost"] == 1
    assert told["steps_redone"] == 31
    assert told["detection_s"] == 2.5
    assert told["recovery_s"] == 8


def test_rows_are_found_in_their_files(tmp_path):
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
    ("code", "said", "lost"),
    [
        (-9, "", True),
        (1, "UnavailableError: tasks are unhealthy (stopped sending heartbeats): task:2", True),
        (1, "ValueError: a mistake of its own", False),
        (None, "warning: task:2 stopped sending heartbeats", False),
    ],
)
def test_who_is_killed_or_given_up_by_the_others_is_lost_and_who_errs_is_not(monkeypatch, code, said, lost):
    monkeypatch.setattr(base, "EXPLAIN_S", HANGS_S if lost else 0.1)
    engine = TfAllReduce()
    engine._processes = [SimpleNamespace(exit_code=code, tail=lambda: said)]
    assert engine._was_lost() == lost


def test_ports_are_free_and_different():
    assert len(set(free_ports(["127.0.0.1"] * 5))) == 5


class Course:
    """In the place of a throttle's event: time passes only where the throttle lets it, until it has for so long."""

    def __init__(self, lasts):
        self.now, self._lasts = 0.0, lasts

    def wait(self, seconds):
        self.now += seconds
        return self.now > self._lasts


def test_a_throttle_leaves_its_share_of_the_time(monkeypatch):
    made, sent = Throttle(lambda: [7], 0.25), []
    made._end = recovery = Course(100 * PERIOD_S)
    monkeypatch.setattr(faults, "send", lambda pids, number: sent.append((recovery.now, pids, number)))
    made._run()
    assert [(pids, number) for _, pids, number in sent] == [([7], signal.SIGSTOP), ([7], signal.SIGCONT)] * 100
    stops, goes = [at for at, _, _ in sent[::2]], [at for at, _, _ in sent[1::2]]
    stood = sum(go - stop for stop, go in zip(stops, goes, strict=True))
    assert stood == pytest.approx(0.75 * 100 * PERIOD_S)
    assert max(go - stop for stop, go in zip(stops, goes, strict=True)) < PERIOD_S, "short beside a step of training"


def test_a_process_with_a_throttle_stands_and_goes_on_until_it_is_released():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        process = psutil.Process(busy.pid)
        made = Throttle(lambda: [busy.pid], 0.25)
        made.start()
        for _ in range(3):
            until(lambda: process.status() == psutil.STATUS_STOPPED)
            spent = process.cpu_times().user
            until(lambda spent=spent: process.cpu_times().user > spent)
        made.release()
        assert process.status() != psutil.STATUS_STOPPED
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.skipif(not hasattr(socket, "AF_NETLINK"), reason="Linux tells; others do not")
def test_the_kernel_tells_who_sent_how_much():
    sockets = Sockets()

    def traffic():
        """What this process has sent and received since, whatever connections other tests have left open in it."""
        sockets.look({os.getpid(): "worker-0"})
        return tuple(now - then for now, then in zip(sockets.by_role().get("worker-0", (0, 0)), before, strict=True))

    before = (0, 0)
    before = traffic()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            near.sendall(b"x" * 100_000)
            received = 0
            while received < 100_000:
                received += len(far.recv(1 << 16))
            until(lambda: min(traffic()) >= 100_000)  # the last acknowledgement is back
            open_now = traffic()
    for sent, got in (open_now, traffic()):
        assert 100_000 <= sent < 110_000
        assert 100_000 <= got < 110_000
