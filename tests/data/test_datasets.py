"""Datasets from every source, the user's own files, and the batch order."""

import gzip
import http.server
import os
import socket
import struct
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from trainoff import data
from trainoff.data import Order, cache, emnist, mnist, mnist_large, share
from trainoff.data.dataset import DatasetRecipe, silent
from trainoff.errors import TrainoffError

NAMES = list(mnist.MNIST.files)


def idx(values: np.ndarray) -> bytes:
    """Return an IDX file of unsigned bytes."""
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def small_files(rows: int = 50, seed: int = 0) -> dict[str, bytes]:
    """Return four files in MNIST's format."""
    rng = np.random.default_rng(seed)
    files = {}
    for part, count in (("train", rows), ("t10k", rows // 5)):
        files[f"{part}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (count, 28, 28), np.uint8))
        files[f"{part}-labels-idx1-ubyte"] = idx((np.arange(count) % 10).astype(np.uint8))
    return files


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRAINOFF_DATA", raising=False)
    monkeypatch.delenv("TRAINOFF_OFFLINE", raising=False)


def payload(files: dict[str, bytes], *addresses: str) -> mnist.MnistFiles:
    import hashlib

    prints = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    return mnist.MnistFiles("mnist", prints, addresses, wheel=None)


class Publisher(http.server.BaseHTTPRequestHandler):
    """A web server that can break off a response and that supports ranges."""

    files: dict[str, bytes]
    break_at: int | None = None
    requests: list[tuple[str, str | None]]

    def do_GET(self):
        name, range_ = self.path.lstrip("/"), self.headers.get("Range")
        self.requests.append((name, range_))
        if name not in self.files:
            self.send_error(404)
            return
        body = self.files[name]
        start = int(range_[6:-1]) if range_ else 0
        self.send_response(206 if range_ else 200)
        if range_:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = len(body)
        if self.break_at is not None:
            end, type(self).break_at = self.break_at, None
        self.wfile.write(body[start:end])

    def log_message(self, *_): ...


@pytest.fixture
def publisher(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = type("Handler", (Publisher,), {"files": {}, "requests": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    handler.address = f"http://127.0.0.1:{server.server_port}/"
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


def test_files_from_a_folder_may_be_raw_or_gzipped_with_a_dash_or_a_dot(tmp_path):
    files = small_files()
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / NAMES[0].replace("-idx", ".idx")).write_bytes(files[NAMES[0]])
    for name in NAMES[1:]:
        (folder / f"{name}.gz").write_bytes(gzip.compress(files[name]))
    made = mnist.make(folder, silent, payload(files))
    assert made.x_train.shape == (50, 784)
    assert made.y_test.tolist() == list(range(10))


def test_a_broken_download_is_resumed(publisher):
    files = small_files()
    publisher.files = {f"{name}.gz": gzip.compress(raw) for name, raw in files.items()}
    publisher.break_at = 1000
    made = mnist.make(None, silent, payload(files, publisher.address))
    assert len(made.x_train) == 50
    assert (f"{NAMES[0]}.gz", "bytes=1000-") in publisher.requests


def test_a_wrong_hash_makes_it_try_the_next_address(publisher, tmp_path):
    files, wrong = small_files(), small_files(seed=1)
    publisher.files = {f"bad/{name}.gz": gzip.compress(raw) for name, raw in wrong.items()}
    publisher.files |= {f"good/{name}.gz": gzip.compress(raw) for name, raw in files.items()}
    made = mnist.make(None, silent, payload(files, f"{publisher.address}bad/", f"{publisher.address}good/"))
    assert np.array_equal(made.x_train, np.frombuffer(files[NAMES[0]][16:], np.uint8).reshape(50, -1))


def test_without_any_source_the_error_explains_what_to_do(publisher):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # it does not listen
        addresses = publisher.address, f"http://127.0.0.1:{reserved.getsockname()[1]}/"
        with pytest.raises(TrainoffError) as caught:
            mnist.make(None, silent, payload(small_files(), *addresses))
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "answered 404" in sentence
    assert "Connection refused" in sentence
    assert "into a folder and set TRAINOFF_DATA to it" in sentence


def test_offline_the_network_is_not_used(monkeypatch, publisher):
    monkeypatch.setenv("TRAINOFF_OFFLINE", "1")
    with pytest.raises(TrainoffError, match="the network was not tried because TRAINOFF_OFFLINE is set"):
        mnist.make(None, silent, payload(small_files(), publisher.address))
    assert publisher.requests == []


def test_real_mnist_from_the_wheel():
    made = mnist.make(None, silent, replace(mnist.MNIST, addresses=()))
    assert made.x_train.shape == (60_000, 784)
    assert np.bincount(made.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda raw: raw[:-5], "is truncated"),
        (lambda raw: raw[:6], "ends within its header"),
        (lambda raw: raw + b"x", "is too long"),
        (lambda raw: b"PK" + raw, "is not an IDX file"),
        (lambda raw: gzip.compress(raw)[:-20], "is not a whole gzip file"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path, damage, sentence):
    for name, raw in small_files().items():
        (tmp_path / name).write_bytes(damage(raw) if "train-images" in name else raw)
    with pytest.raises(TrainoffError, match=sentence):
        data.get(tmp_path)


def test_cached_arrays_are_mapped_and_not_copied():
    got = data.get("digits")
    assert (got.x_train.shape, got.x_test.shape, got.classes) == ((1437, 64), (360, 64), 10)
    assert isinstance(got.x_train, np.memmap)
    assert not got.x_train.flags.writeable
    assert got.x_train.dtype == np.float32
    assert 0 <= got.x_train.min() < got.x_train.max() <= 1
    assert np.shares_memory(got.head(10).x_train, got.x_train)
    assert set(np.unique(got.head(100).y_train)) == set(range(10))


def test_a_truncated_array_is_noticed_and_repaired():
    data.get("digits")
    victim = cache.dataset_folder("digits") / "x_train.npy"
    os.truncate(victim, 1000)
    with pytest.raises(TrainoffError, match=r"digits in .* is damaged .*run: trainoff data get digits"):
        data.load("digits")
    assert len(data.get("digits").x_train) == 1437


def test_a_flipped_bit_is_found_by_verify():
    data.get("digits")
    assert data.verify() == [("digits", True, "digits is whole")]
    victim = cache.dataset_folder("digits") / "x_test.npy"
    raw = bytearray(victim.read_bytes())
    raw[500] ^= 1
    victim.write_bytes(raw)
    ((name, whole, sentence),) = data.verify()
    assert (name, whole) == ("digits", False)
    assert sentence.endswith("is damaged (x_test.npy has changed); run: trainoff data get digits --force")
    data.get("digits", force=True)
    assert data.verify()[0][1]


def test_load_does_not_fetch():
    with pytest.raises(TrainoffError, match=r"mnist is not in the cache .*; run: trainoff data get mnist"):
        data.load("mnist")


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRAINOFF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        TrainoffError, match=r"cannot be written \(Not a directory\); free some space or set TRAINOFF_CACHE"
    ):
        data.get("digits")


def test_several_processes_may_get_a_dataset_at_once(tmp_path):
    code = "from trainoff import data; print(len(data.get('digits').x_train))"
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == ["1437"] * 3
    assert not list((tmp_path / "cache" / "data").glob("*.new"))


def test_an_interrupted_write_leaves_no_dataset(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            data.get("digits")
    with pytest.raises(TrainoffError, match="is not in the cache"):
        data.load("digits")
    assert len(data.get("digits").x_train) == 1437


def test_mnist_large_is_augmented_mnist():
    raw = small_files(rows=30)
    train = np.frombuffer(raw[NAMES[0]][16:], np.uint8).reshape(30, -1)
    parent = data.Data("mnist", (train / 255).astype(np.float32), np.arange(30) % 10,
                       (train[:5] / 255).astype(np.float32), np.arange(5), 10, "id", (28, 28))  # fmt: skip
    one, again = mnist_large.make(parent, silent), mnist_large.make(parent, silent)
    assert one.x_train.shape == (120, 784)
    assert one.x_test.shape == (20, 784)
    assert np.array_equal(one.x_train, again.x_train)
    assert one.y_train.tolist() == (np.arange(30) % 10).tolist() * 4
    assert len(np.unique(one.x_train, axis=0)) == 120
    still = np.tile(np.array([[[1, 0, 0], [0, 1, 0]]], np.int32) << 16, (30, 1, 1))
    assert np.array_equal(mnist_large.warp(train, still), train), "the identity map changes nothing"


def emnist_archive(path, rows=20):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (rows, 28, 28), np.uint8)
    with zipfile.ZipFile(path, "w") as archive:
        for part in ("train", "test"):
            for kind, values in (("images-idx3", images), ("labels-idx1", (np.arange(rows) % 10).astype(np.uint8))):
                archive.writestr(f"gzip/emnist-digits-{part}-{kind}-ubyte.gz", gzip.compress(idx(values)))
    return images


def test_emnist_images_are_transposed(tmp_path):
    images = emnist_archive(tmp_path / "gzip.zip")
    made = emnist.read(tmp_path / "gzip.zip")
    assert np.array_equal(made.x_train.reshape(-1, 28, 28), images.transpose(0, 2, 1))
    (tmp_path / "other.zip").write_bytes(b"not a zip")
    with pytest.raises(TrainoffError, match="is not the EMNIST archive"):
        emnist.read(tmp_path / "other.zip")


def test_emnist_from_a_folder_must_be_the_published_archive(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINOFF_OFFLINE", "1")
    emnist_archive(tmp_path / "gzip.zip")
    with pytest.raises(TrainoffError, match="is not the published archive"):
        data.get("emnist-digits", folder=tmp_path)
    from trainoff.data.cache import sha256

    known = emnist.Archive("https://example.org/gzip.zip", sha256(tmp_path / "gzip.zip"))
    recipe = DatasetRecipe("emnist-digits", "emnist-digits", "emnist-digits", "id", lambda folder, say: None)
    cache.store(recipe, emnist.make(tmp_path, silent, known), silent)
    assert cache.read(recipe).x_train.shape == (20, 784)


def table(rows: int = 40) -> str:
    return "\n".join(["a,b,label", *(f"{i * 3},{i % 5},{'yes' if i % 2 else 'no'}" for i in range(rows))])


def test_own_tables(tmp_path):
    (tmp_path / "my.csv").write_text(table())
    got = data.get(tmp_path / "my.csv")
    assert (len(got.x_train), len(got.x_test), got.classes) == (32, 8, 2)
    assert got.x_train.min() == 0
    assert got.x_train.max() == 1
    import polars

    polars.read_csv(tmp_path / "my.csv").write_parquet(tmp_path / "my.parquet")
    assert np.array_equal(data.get(tmp_path / "my.parquet").x_train, got.x_train)


def test_column_names_may_be_digits(tmp_path):
    (tmp_path / "my.csv").write_text("0,1_1,label\n" + "1,2,0\n3,4,1\n" * 10)
    assert data.get(tmp_path / "my.csv").x_train.shape == (16, 2)


def test_own_arrays_and_idx_files(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((30, 6)), np.arange(30) % 3
    np.savez(tmp_path / "my.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    got = data.get(tmp_path / "my.npz")
    assert (len(got.x_train), len(got.x_test), got.classes) == (30, 9, 3)
    folder = tmp_path / "idx"
    folder.mkdir()
    for name, raw in small_files().items():
        (folder / name).write_bytes(raw)
    assert data.get(folder).image == (28, 28)


def test_the_identity_of_own_data_is_its_content(tmp_path):
    (tmp_path / "one.csv").write_text(table())
    (tmp_path / "two.csv").write_text(table())
    assert data.identity(tmp_path / "one.csv") == data.identity(tmp_path / "two.csv")
    before = data.identity(tmp_path / "one.csv")
    (tmp_path / "one.csv").write_text(table(41))
    assert data.identity(tmp_path / "one.csv") != before


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("no.csv", None, "there is no file or folder"),
        ("empty.csv", "", "cannot be read as a table|is empty"),
        ("header.csv", "a,b,label\n", "is empty"),
        ("text.csv", "a,label\nx,0\ny,1\n", "has no numeric features"),
        ("half.csv", "a,b,label\n1,x,0\n2,y,1\n", "column 'b' is not numeric"),
        ("hole.csv", "a,b,label\n1,2,0\n3,,1\n", "row 2, column 'b' is missing, NaN or infinite"),
        ("real.csv", "a,label\n1,0.5\n2,1.5\n", "the label 0.5 is not a whole number"),
        ("one.csv", "a,label\n1,7\n2,7\n", "all labels are 7; there must be at least two classes"),
        ("bare.csv", "5,0.5,-1e3\n4,1.5,2\n", "the first line looks like data; a head line with the names"),
        ("quoted.csv", '"5","0"\r\n"4","1"\r\n', "the first line looks like data"),
        ("semicolons.csv", "a;b;label\n1,5;2;0\n", "has one column; is its separator `;`. Only commas are read"),
        ("title.csv", "flowers\na;label\n1;0\n", "is its separator `;`"),
        ("tabs.csv", "a\tlabel\n1\t0\n2\t1\n", "is its separator a tab"),
        ("odd.doc", "hello", "ends in none of .npz, .csv, .parquet"),
        ("bad.npz", "hello", "is not a readable .npz file"),
        ("bad.parquet", "hello", "cannot be read as a table"),
    ],
)
def test_unusable_own_data_is_a_one_line_error(tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(TrainoffError, match=sentence) as caught:
        data.get(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_own_data_that_cannot_be_scaled_is_an_error(tmp_path):
    (tmp_path / "wide.csv").write_text("a,label\n-1e308,0\n1e308,1\n0,0\n1,1\n2,0\n3,1\n")
    with pytest.raises(TrainoffError, match="the features are too large to be scaled"):
        data.get(tmp_path / "wide.csv")
    import polars

    polars.DataFrame({"a": [1.0, 2.0], "label": [[1], [2]]}).write_parquet(tmp_path / "nested.parquet")
    with pytest.raises(TrainoffError, match="column 'label' holds List"):
        data.get(tmp_path / "nested.parquet")


def test_own_parts_of_different_shapes_are_an_error(tmp_path):
    x, y = np.zeros((9, 4)), np.arange(9) % 3
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=np.zeros((9, 5)), y_test=y)
    with pytest.raises(TrainoffError, match=r"differ in shape: \[4\] and \[5\]"):
        data.get(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=x, y=y[:5])
    with pytest.raises(TrainoffError, match="9 rows of features, but 5 labels"):
        data.get(tmp_path / "b.npz")


def test_the_batch_order_is_reproducible_and_new_in_every_epoch():
    order = Order("id", rows=23, batch_size=5, epochs=2, seed=1)
    batches = list(order.batches())
    assert [step for step, _ in batches] == list(range(1, 11))
    assert [len(rows) for _, rows in batches] == [5, 5, 5, 5, 3] * 2
    first, second = (np.concatenate([rows for _, rows in batches[part]]) for part in (slice(5), slice(5, 10)))
    assert sorted(first) == sorted(second) == list(range(23))
    assert first.tolist() != second.tolist()
    assert [order.samples_after(step) for step in (1, 5, 6, 10)] == [5, 23, 28, 46]
    assert Order("id", 23, 5, 2, seed=2).epoch(0).tolist() != order.epoch(0).tolist()


def test_a_batch_is_shared_evenly():
    rows = np.arange(11)
    shares = [share(rows, worker, 4) for worker in range(4)]
    assert np.concatenate(shares).tolist() == rows.tolist()
    assert {len(part) for part in shares} == {2, 3}
