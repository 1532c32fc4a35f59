"""Rows in a store: Parquet and TFRecord in local files, in memory, and on an S3 server."""

import re
import subprocess
import sys
from uuid import uuid4

import numpy as np
import pytest

from helpers.running import only_record, study, trainoff, wait_until
from trainoff.engines.shared.storage import PART_ROWS, Storage
from trainoff.errors import TrainoffError

KINDS = ("parquet", "tfrecord")
ADDRESS = r"http://127\.0\.0\.1:(\d+)\s"  # of the S3 server, in its log
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


def pictures(rows, levels=255):
    random = np.random.default_rng(1)
    x = (random.integers(0, levels + 1, (rows, 12)) / levels).astype(np.float32)
    return x, random.integers(0, 10, rows)


def round_trip(url, kind, folder, levels=255, rows=PART_ROWS + 3):
    """Write rows to a store, check that fetching returns them, and return the store."""
    x, y = pictures(rows, levels)
    store = Storage(url, kind, "pictures")
    assert store.parts() == []
    store.put(x, y)
    Storage(url, kind, "pictures").fetch(folder / "fetched")
    np.testing.assert_array_equal(np.fromfile(folder / "fetched" / "x_train", np.float32).reshape(x.shape), x)
    np.testing.assert_array_equal(np.fromfile(folder / "fetched" / "y_train", np.int64), y)
    return store


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [255, 16], ids=["bytes", "floats"])
def test_local_files(tmp_path, kind, levels):
    store = round_trip(f"file://{tmp_path}/store", kind, tmp_path, levels)
    assert len(store.parts()) == 2
    (first, *_) = store.parts()
    assert len(store.read(first)[1]) == PART_ROWS


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_system_in_memory(tmp_path, kind):
    round_trip(f"memory://store-{uuid4().hex}", kind, tmp_path, rows=50)


def test_tensorflow_can_read_the_records(tmp_path):
    store = round_trip(f"file://{tmp_path}/store", "tfrecord", tmp_path, rows=20)
    code = f"""
import tensorflow as tf
fields = {{"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([], tf.int64)}}
for record in tf.data.TFRecordDataset({store.parts()!r}):
    row = tf.io.parse_single_example(record, fields)
    print(int(row["y"]), tf.reduce_sum(tf.cast(tf.io.decode_raw(row["x"], tf.uint8), tf.int32)).numpy())
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    x, y = pictures(20)
    sums = np.rint(x * 255).sum(1).astype(int)
    assert output.split() == [str(part) for pair in zip(y, sums, strict=True) for part in pair]


def test_incomplete_rows_are_written_again(tmp_path):
    store = round_trip(f"file://{tmp_path}/store", "parquet", tmp_path, rows=20)
    (tmp_path / "store" / "pictures.parquet" / "_SUCCESS").unlink()
    (tmp_path / "store" / "pictures.parquet" / "part-00000.parquet").write_text("torn")
    assert store.parts() == []
    store.put(*pictures(20))
    store.fetch(tmp_path / "again")
    np.testing.assert_array_equal(np.fromfile(tmp_path / "again" / "y_train", np.int64), pictures(20)[1])


def test_every_worker_gets_its_share_of_the_rows_in_the_files(tmp_path):
    x, y = pictures(2 * PART_ROWS + 5)
    store = Storage(f"file://{tmp_path}/store", "parquet", "pictures")
    store.put(x, y)
    shares = store.shares(len(y), 4)
    read = [[store.read(part)[1][first:last] for part, first, last in share] for share in shares]
    assert [sum(map(len, parts)) for parts in read] == [5001, 5001, 5001, 5002]
    np.testing.assert_array_equal(np.concatenate([part for parts in read for part in parts]), y)
    assert [len(share) for share in store.shares(1, 2)] == [0, 1]


def test_a_store_without_the_rows_is_an_error(tmp_path):
    with pytest.raises(TrainoffError, match="has no complete pictures, as seen from "):
        Storage(f"file://{tmp_path}/store", "parquet", "pictures").fetch(tmp_path / "fetched")


@pytest.fixture(autouse=True, scope="module")
def tensorflow():
    """All of TensorFlow: a partial import in this process would stay, and other tests need more."""
    import tensorflow

    return tensorflow


@pytest.mark.parametrize("url", ["nowhere://x/y", "file:///proc/nothing/here", "rows"])
def test_an_address_that_cannot_be_opened_or_written_is_an_error(url):
    with pytest.raises(TrainoffError, match=rf"^storage = '{re.escape(url)}' cannot be (opened|written): .*"):
        Storage(url, "parquet", "x").put(*pictures(1))


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """An S3 server on this machine with an empty bucket; yields the address."""
    log = tmp_path_factory.mktemp("s3") / "log.txt"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [sys.executable, "-c", "from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"],
            stdout=sink,
            stderr=sink,
        )
    try:
        wait_until(lambda: re.search(ADDRESS, log.read_text()), server)
        (port, *_) = re.findall(ADDRESS, log.read_text())
        yield f"s3://bucket/rows?scheme=http&endpoint_override=127.0.0.1:{port}&allow_bucket_creation=true"
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_speaks_s3(tmp_path, s3, kind, monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    round_trip(s3, kind, tmp_path)


@pytest.mark.java
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("feed", "kind"), [("tensorflow", "parquet"), pytest.param("spark", "tfrecord", marks=pytest.mark.soak)]
)
def test_a_training_reads_its_rows_from_s3(tmp_path, s3, feed, kind):
    more = f'workers = 2\noptimizer = "sgd"\nbatch_size = 60\nstorage = "{s3}"\nformat = "{kind}"\nfeed = "{feed}"\n'
    done = trainoff("run", study(tmp_path, "tf-on-spark", more=more), "--out", tmp_path / "out", **KEYS)
    record = only_record(tmp_path / "out")
    assert done.returncode == 0, record["reason"]
    assert record["equivalence"]["verdict"] == ("exact" if feed == "tensorflow" else "different by design")
    assert record["isolation"]["reason"] == "the store of its rows is on the host's network"
    if feed == "spark":
        assert record["notes"]["feed"].startswith("partitions of 150, 150 rows")


def test_keys_in_a_study_are_refused(tmp_path):
    more = 'storage = "s3://key:secret@bucket/rows"'
    trainoff("run", study(tmp_path, "tf-on-spark", more=more), "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["status"] == "unsupported"
    assert record["reason"].startswith("storage holds a key")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
