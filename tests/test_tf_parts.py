"""The parts of distributed TensorFlow that need neither TensorFlow nor a cluster."""

import os
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from trainoff.clusters.ports import free_ports
from trainoff.conduct.brake import Brake
from trainoff.conduct.sockets import Sockets
from trainoff.data import Csr, Order
from trainoff.engines.checkpoint import Keeper
from trainoff.engines.handover import in_file
from trainoff.engines.losses import Losses
from trainoff.engines.tf_cluster import base
from trainoff.engines.tf_cluster.allreduce import TfAllReduce
from trainoff.engines.tf_cluster.gate import Deal, Gate
from trainoff.engines.tf_cluster.pipeline import spans, stages
from trainoff.engines.tf_cluster.store import place
from trainoff.models import Cnn, Mlp

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
    deal = Deal(6, 2, done={1})
    assert [deal.next(0) for _ in range(3)] == [3, 5, 2]
    deal.put_back(1, 4)
    assert [deal.next(1), deal.next(1), deal.next(1), deal.next(1)] == [4, 4, 6, None]


def test_nobody_passes_the_gate_who_would_make_another_too_stale():
    gate = Gate(ORDER, 3, lambda updates, samples: False, most_stale=1)
    gate.take(0)
    gate.take(1)  # the first one may now miss this update, and this one the first's
    waiting = threading.Thread(target=gate.take, args=(2,), daemon=True)
    waiting.start()
    time.sleep(0.05)
    assert list(gate.flying) == [0, 1]
    gate.done(0)
    time.sleep(0.05)
    assert list(gate.flying) == [1], "the second one has missed as many as it may"
    gate.done(1)
    waiting.join(1)
    assert list(gate.flying) == [2]


def test_a_pause_begins_with_the_update_that_wants_it():
    gate = Gate(ORDER, 2, lambda updates, samples: updates == 1)
    gate.take(0)
    gate.take(1)
    gate.done(0)
    assert gate.paused
    assert gate.counted() is None
    assert not gate.wait(0.01)
    gate.done(1)
    assert gate.wait(1)
    assert gate.counted() == (2, 20)
    gate.go_on()
    assert gate.take(1) == (4, 3)


def test_the_batch_of_a_lost_worker_is_made_by_another():
    gate = Gate(ORDER, 2, lambda updates, samples: False, done=range(1, 21))
    assert gate.samples == 103 + 90
    assert gate.take(0) == (21, 21)
    gate.lose(0)
    assert gate.take(0) is None
    assert gate.take(1) == (22, 22)
    assert gate.done(1)
    assert not gate.done(0), "what a lost worker still says does not count"
    assert gate.take(1) == (21, 22)
    gate.done(1)
    assert gate.over
    assert gate.samples == 206
    assert gate.redone == 1


class Held:
    """As much of a variable as a checkpoint needs."""

    def __init__(self, value):
        self._value = np.array(value)

    def numpy(self):
        return self._value


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    keeper = Keeper(tmp_path / "checkpoint.npz", 10)
    assert keeper.load() is None
    assert [keeper.due(updates) for updates in (9, 10, 11)] == [False, True, True]
    keeper.save([Held([1.0, 2.0]), Held([[3.0]])], {1, 2, 3})
    assert not keeper.due(12)
    found = Keeper(tmp_path / "checkpoint.npz", 10).load()
    assert [part.tolist() for part in found.state] == [[1.0, 2.0], [[3.0]]]
    assert found.done == {1, 2, 3}
    assert not Keeper(tmp_path / "none.npz", 0).due(10**6)


def test_losses_are_told_only_where_there_were_some():
    losses = Losses()
    losses.over(time.monotonic())
    assert losses.counts({"workers_lost": 1}) == {"workers_lost": 1}
    losses.begin(time.monotonic() - 2)
    losses.redo(30)
    losses.redo(-5)  # the checkpoint was newer than the last sign of life
    losses.begin(time.monotonic())  # lost again before it had recovered
    losses.over(time.monotonic() + 5)
    told = losses.counts({"steps_redone": 1, "workers_lost": 1})
    assert told["restarts"] == 2
    assert told["workers_lost"] == 1
    assert told["steps_redone"] == 31
    assert 2 <= told["detection_s"] < 3
    assert 5 <= told["recovery_s"] < 6


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
    monkeypatch.setattr(base, "EXPLAIN_S", 0.1)
    engine = TfAllReduce()
    engine._processes = [SimpleNamespace(exit_code=code, tail=lambda: said)]
    assert engine._was_lost() == lost


def test_ports_are_free_and_different():
    assert len(set(free_ports(["127.0.0.1"] * 5))) == 5


def test_a_brake_leaves_a_process_its_share():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        process = psutil.Process(busy.pid)
        brake = Brake(lambda: [busy.pid], 0.25)
        brake.start()
        time.sleep(0.3)
        spent, start = process.cpu_times().user, time.monotonic()
        time.sleep(1.5)
        share = (process.cpu_times().user - spent) / (time.monotonic() - start)
        brake.release()
        assert 0.05 < share < 0.5
        assert process.status() != psutil.STATUS_STOPPED
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.skipif(not hasattr(socket, "AF_NETLINK"), reason="Linux tells; others do not")
def test_the_kernel_tells_who_sent_how_much():
    sockets = Sockets()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            near.sendall(b"x" * 100_000)
            received = 0
            while received < 100_000:
                received += len(far.recv(1 << 16))
            time.sleep(0.1)  # until the last acknowledgement is back
            sockets.look({os.getpid(): "worker-0"})
    open_now = sockets.by_role()["worker-0"]
    sockets.look({os.getpid(): "worker-0"})
    for sent, got in (open_now, sockets.by_role()["worker-0"]):
        assert 100_000 <= sent < 110_000
        assert 100_000 <= got < 110_000
