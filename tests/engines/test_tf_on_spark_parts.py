"""The parts of tf-on-spark that need no Spark: batches of rows, their transfer, the membership of nodes."""

import pickle
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.running import HANGS_S, wait_for
from trainoff.engines.contract import WorkerFailed
from trainoff.engines.shared.control_channel import Endpoint
from trainoff.engines.shared.shipping import compact, expand, gather_rows
from trainoff.engines.tf_on_spark import compat
from trainoff.engines.tf_on_spark.cluster import Membership, NodeEnded, register
from trainoff.engines.tf_on_spark.feed import PushTask, apportion, blocks, shuffle, split_batches


def rows(count):
    """Return distinguishable rows and their classes."""
    return np.arange(count, dtype=np.float32).reshape(-1, 1), np.arange(count)


def pushes(sizes, batches, block_rows=7, seed=1):
    """Return what every partition pushes in an epoch, as lists of batches."""
    push = PushTask(compat.Access(None, "", b""), 0, seed, sizes, batches, block_rows, 1)
    pushed = []
    for partition, size in enumerate(sizes):
        mixed = shuffle(iter(blocks(*rows(size), 1)), np.random.default_rng(seed))
        items = split_batches(mixed, push.sizes(partition), block_rows, 1)
        pushed.append(list(chain.from_iterable(items)))
    return pushed


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(1, 60), st.integers(1, 100))
def test_every_worker_gets_a_part_of_every_step_and_no_row_is_lost(sizes, steps, block_rows):
    pushed = pushes(sizes, [steps] * len(sizes), block_rows)
    for size, batches in zip(sizes, pushed, strict=True):
        assert len(batches) == steps
        lengths = [len(y) for _, y in batches]
        assert max(lengths) - min(lengths) <= 1
        assert sorted(np.concatenate([y for _, y in batches])) == list(range(size))
        assert all((x[:, 0] == y).all() for x, y in batches), "a row keeps its class"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5).filter(any), st.data())
def test_asynchronous_steps_are_apportioned_by_rows(sizes, data):
    steps = data.draw(st.integers(1, sum(sizes)))
    counts = apportion(steps, sizes)
    assert sum(counts) == steps
    for count, size in zip(counts, sizes, strict=True):
        assert abs(count - steps * size / sum(sizes)) < 1.5
        assert count <= size, "no batch is empty"


def test_an_empty_partition_pushes_empty_batches():
    batches = list(chain.from_iterable(split_batches(iter(()), [0, 0, 0], 10, 5)))
    assert [x.shape for x, _ in batches] == [(0, 5)] * 3


def test_rows_are_shuffled_every_epoch():
    orders = [[int(y[0]) for _, y in pushes([40], [40], seed=seed)[0]] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_every_partition_has_as_many_blocks():
    found = blocks(*rows(2501), 2)
    assert len(found) == 4
    assert [sum(len(y) for _, y in found[:2]), sum(len(y) for _, y in found[2:])] == [1251, 1250]


def test_grey_pictures_are_transferred_as_bytes_without_loss():
    grey = (np.random.default_rng(1).integers(0, 256, (5000, 9)) / 255).astype(np.float32)
    small = compact(grey)
    assert small.dtype == np.uint8
    np.testing.assert_array_equal(expand(small), grey)
    rows, out = np.array([3, 0, 3]), np.zeros((3, grey.shape[1]), np.float32)
    for held in (grey, small):
        gather_rows(held, rows, out)
        np.testing.assert_array_equal(out, grey[rows])


@pytest.mark.parametrize("value", [0.1, -1 / 255, 256 / 255, np.nan])
def test_other_values_are_transferred_unchanged(value):
    x = np.zeros((5000, 2), np.float32)
    x[4999, 1] = value
    sent = compact(x)
    assert sent.dtype == np.float32
    np.testing.assert_array_equal(expand(sent), x)


class FileMaker:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def server():
    """The patched reservation server of tensorflowonspark for one node, and its address."""
    patched = compat.patch("127.0.0.1", b"secret")
    found = patched.reservation.Server(1)
    yield patched.reservation, found, found.start()
    found.stop()


def test_nodes_of_the_trial_can_register(server):
    reservation, found, address = server
    assert address[0] == "127.0.0.1"
    client = reservation.Client(address)
    client.register({"node": 1})
    assert client.get_reservations() == [{"node": 1}]
    assert found.reservations.done()
    client.close()


def test_messages_without_the_trials_signature_are_not_unpickled(server, tmp_path):
    _, found, address = server
    data = pickle.dumps(FileMaker(tmp_path / "executed"))
    for message in (struct.pack(">I", len(data)) + data, struct.pack(">I", len(data)) + bytes(32) + data):
        with socket.create_connection(address) as connection, suppress(ConnectionResetError):
            connection.sendall(message + bytes(64))
            assert connection.recv(1) == b"", "it closes the connection"
    assert not (tmp_path / "executed").exists()
    assert not found.reservations.done()


def test_loading_tensorflowonspark_does_not_import_tensorflow():
    code = (
        "import sys; from trainoff.engines.tf_on_spark.compat import load; load(); print('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_the_end_of_a_process_is_reported_with_its_last_output():
    membership = Membership("127.0.0.1")
    healthy, failing = register(membership.endpoint, "tf-worker-0"), register(membership.endpoint, "tf-worker-1")
    membership.check()
    failing.send(NodeEnded(1, "Traceback ...\nValueError: why"))
    with pytest.raises(WorkerFailed, match="ValueError: why") as caught:
        wait_for(membership.check)
    assert caught.value.role == "tf-worker-1"
    assert caught.value.log.endswith("why")
    assert membership.lost is None
    membership.close()
    assert healthy.poll(HANGS_S), "closing the membership disconnects all"


def test_a_process_that_disconnects_is_reported_as_lost():
    membership = Membership("127.0.0.1")
    register(membership.endpoint, "tf-ps-0").close()
    wait_for(lambda: membership.lost == "tf-ps-0")
    membership.close()


def test_a_client_without_the_secret_is_rejected():
    membership = Membership("127.0.0.1")
    with pytest.raises(Exception, match="digest"):
        register(Endpoint("127.0.0.1", membership.endpoint.port, b"guess"), "tf-ps-0")
    register(membership.endpoint, "tf-ps-1").close()
    wait_for(lambda: membership.lost == "tf-ps-1")
    membership.close()
