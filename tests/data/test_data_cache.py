"""The cache: whole or not at all, one maker at a time, damage is noticed; what `trainoff data` shows of it."""

from __future__ import annotations

import fcntl
import gzip
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import payload_of, small_files

from trainoff import data
from trainoff.data import catalogue, distort, mnist
from trainoff.data.dataset import Recipe
from trainoff.errors import TrainoffError


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mnist and mnist-large as always, but of 60 + 20 images that lie in a folder."""
    files = small_files()
    (tmp_path / "mine").mkdir()
    for name, raw in files.items():
        (tmp_path / "mine" / f"{name}.gz").write_bytes(gzip.compress(raw))
    monkeypatch.setenv("TRAINOFF_DATA", str(tmp_path / "mine"))
    make = partial(mnist.make, payload=payload_of(files))
    monkeypatch.setitem(catalogue.RECIPES, "mnist", Recipe("mnist", "mnist", "mnist", "small", make))


def python(code: str) -> subprocess.Popen[str]:
    """Another process that uses the same cache."""
    code = f"import os; from trainoff import data; from trainoff.data import catalogue\n{code}"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_what_was_got_is_loaded_from_the_cache_memory_mapped(small_mnist):
    data.get("mnist")
    loaded = data.load("mnist")
    assert loaded.x_train.shape == (60, 784)
    assert loaded.x_train.dtype == np.float32
    assert loaded.y_test.dtype == np.int64
    assert all(isinstance(part, np.memmap) for part in (loaded.x_train, loaded.y_train, loaded.x_test, loaded.y_test))
    assert not loaded.x_train.flags.writeable
    assert 0.99 < loaded.x_train.max() <= 1
    assert (loaded.classes, loaded.image, loaded.identity) == (10, (28, 28), "small")


def test_the_scaled_features_are_the_bytes_by_255(small_mnist):
    raw = np.frombuffer(small_files()["train-images-idx3-ubyte"], np.uint8, offset=16)
    assert (data.get("mnist").x_train.ravel() == raw.astype(np.float32) / np.float32(255)).all()


def test_the_head_is_a_view_of_the_first_training_rows(small_mnist):
    whole = data.get("mnist")
    head = whole.head(7)
    assert len(head.x_train) == len(head.y_train) == 7
    assert len(head.x_test) == 20
    assert np.shares_memory(head.x_train, whole.x_train)
    for rows in (0, 61):
        with pytest.raises(TrainoffError, match=f"train_rows = {rows}, but mnist has 60 training rows; choose 1 to 60"):
            whole.head(rows)


def test_loading_never_fetches(cache_folder):
    with pytest.raises(TrainoffError, match=f"mnist is not in the cache {cache_folder}; run: trainoff data get mnist"):
        data.load("mnist")


def test_getting_twice_makes_once(small_mnist):
    data.get("mnist")
    said = []
    data.get("mnist", say=lambda *step: said.append(step))
    assert said == []


def test_two_processes_at_once_make_it_once(cache_folder):
    (cache_folder / "data").mkdir(parents=True)
    with (cache_folder / "data" / "digits.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = [python("data.get('digits', say=lambda *step: print(*step, flush=True))") for _ in range(2)]
        for process in both:
            assert process.stdout.readline().startswith("waiting for the process")
    written = ["writing x_train" in process.communicate()[0] for process in both]
    assert sorted(written) == [False, True]
    assert [process.returncode for process in both] == [0, 0]


@pytest.mark.parametrize("moment", ["writing x_train", "writing y_test"])
def test_a_maker_that_is_killed_leaves_nothing_readable(cache_folder, moment):
    killed = python(f"data.get('digits', say=lambda what, *_: what == {moment!r} and os.kill(os.getpid(), 9))")
    assert killed.wait() == -9
    with pytest.raises(TrainoffError, match="digits is not in the cache"):
        data.load("digits")
    assert len(data.get("digits").y_train) == 1437
    assert sorted(path.name for path in (cache_folder / "data").iterdir()) == ["digits", "digits.lock"]


def test_a_truncated_array_is_noticed_at_once_and_get_repairs_it(cache_folder):
    path = cache_folder / "data" / "digits" / "x_train.npy"
    data.get("digits")
    os.truncate(path, 1000)
    with pytest.raises(TrainoffError) as caught:
        data.load("digits")
    assert str(caught.value) == (
        f"digits in {path.parent} is damaged (x_train.npy has 1,000 bytes instead of 368,000); "
        "run: trainoff data get digits"
    )
    data.get("digits")
    assert data.verify() == [("digits", True, "digits is whole")]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "digits"}'])
def test_a_broken_manifest_is_noticed(cache_folder, text):
    data.get("digits")
    (cache_folder / "data" / "digits" / "manifest.json").write_text(text)
    with pytest.raises(TrainoffError, match=r"is damaged \(its manifest.json cannot be read\)"):
        data.load("digits")
    assert [ok for _, ok, _ in data.verify()] == [False]
    assert data.get("digits").classes == 10


def test_a_changed_byte_is_found_by_verify_and_repaired_by_force(cache_folder):
    path = cache_folder / "data" / "digits" / "x_test.npy"
    data.get("digits")
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    sentence = f"digits in {path.parent} is damaged (x_test.npy has changed); run: trainoff data get digits --force"
    assert data.verify() == [("digits", False, sentence)]
    data.get("digits", force=True)
    assert data.verify() == [("digits", True, "digits is whole")]


def test_a_dataset_made_by_another_version_is_made_again(small_mnist, monkeypatch):
    data.get("mnist")
    older = catalogue.RECIPES["mnist"]
    monkeypatch.setitem(catalogue.RECIPES, "mnist", Recipe("mnist", "mnist", "mnist", "newer", older.make))
    with pytest.raises(TrainoffError, match="mnist is not in the cache"):
        data.load("mnist")
    assert data.get("mnist").identity == "newer"


def test_a_cache_that_cannot_be_written_is_said(monkeypatch):
    monkeypatch.setenv("TRAINOFF_CACHE", "/dev/null/cache")
    with pytest.raises(TrainoffError) as caught:
        data.get("digits")
    assert str(caught.value) == (
        "the cache /dev/null/cache cannot be written (Not a directory); free some space "
        "or set TRAINOFF_CACHE to another folder"
    )


def test_a_full_disk_is_said_and_leaves_nothing(cache_folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(TrainoffError, match=r"cannot be written \(File too large\); free some space"):
            data.get("digits")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (cache_folder / "data").iterdir()] == ["digits.lock"]


def test_the_catalogue_says_what_is_there_and_what_it_takes():
    data.get("digits")
    entries = {entry.name: entry for entry in data.catalogue()}
    assert list(entries) == ["mnist", "digits", "mnist-large", "emnist-digits"]
    assert [entry.name for entry in entries.values() if entry.cached] == ["digits"]
    assert (entries["mnist-large"].rows, entries["mnist-large"].features) == (280_000, 784)
    assert entries["digits"].bytes == 1797 * (64 * 4 + 8)


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(TrainoffError, match=r"there is no dataset 'minst'; did you mean mnist\?"):
        data.get("minst")
    with pytest.raises(TrainoffError, match="there is no dataset 'birds'; there are mnist, digits, mnist-large"):
        data.identity("birds")


def test_identities_are_known_without_any_data(cache_folder):
    names = ["mnist", "digits", "mnist-large", "emnist-digits"]
    assert len({data.identity(name) for name in names}) == 4
    assert not cache_folder.exists()


def test_digits_are_split_evenly_and_all_of_them_are_there():
    digits = data.get("digits")
    assert (digits.x_train.shape, digits.x_test.shape, digits.image) == ((1437, 64), (360, 64), (8, 8))
    assert digits.x_train.min() == 0
    assert digits.x_train.max() == 1
    train, test = np.bincount(digits.y_train), np.bincount(digits.y_test)
    assert list(train + test) == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert test.min() >= 34
    assert test.max() <= 37
    assert len(set(digits.y_train[:100])) == 10


def test_mnist_large_is_four_small_distortions_of_every_image(small_mnist):
    said = []
    large = data.get("mnist-large", say=lambda *step: said.append(step))
    small = data.load("mnist")  # it was needed, so it was brought
    assert (large.x_train.shape, large.x_test.shape) == ((240, 784), (80, 784))
    assert (large.y_train == np.tile(small.y_train, 4)).all()
    assert len(np.unique(large.x_train, axis=0)) == 240
    assert ("distorting mnist", 320, 320) in said
    assert (large.x_train * 255 == np.rint(large.x_train * 255)).mean() > 0.9  # bytes by 255


def test_every_machine_distorts_alike():
    pixels = np.random.default_rng(3).integers(0, 256, (100, 784)).astype(np.float32) / np.float32(255)
    made = distort.copies(pixels, "train", lambda done: None)
    import hashlib

    assert hashlib.sha256(made.tobytes()).hexdigest()[:16] == "PIN"


def test_the_map_that_changes_nothing_changes_nothing_and_a_shift_shifts():
    pixels = np.random.default_rng(4).integers(0, 256, (2, 784), dtype=np.uint8)
    one = 1 << 16
    same = np.array([[[one, 0, 0], [0, one, 0]]] * 2, np.int32)
    assert (distort.distort(pixels, same) == pixels).all()
    right = np.array([[[one, 0, -2 * one], [0, one, 0]]] * 2, np.int32)
    shifted = distort.distort(pixels, right).reshape(2, 28, 28)
    assert (shifted[:, :, 2:] == pixels.reshape(2, 28, 28)[:, :, :-2]).all()
    assert (shifted[:, :, :2] == 0).all()
    half = np.array([[[one, 0, 0], [0, one, one // 2]]] * 2, np.int32)
    above, below = pixels.reshape(2, 28, 28)[:, :-1].astype(int), pixels.reshape(2, 28, 28)[:, 1:].astype(int)
    assert (distort.distort(pixels, half).reshape(2, 28, 28)[:, :-1] == (above + below + 1) // 2).all()
