"""The cache: killed processes, a full disk, a broken manifest, another version, the catalogue."""

from __future__ import annotations

import fcntl
import hashlib
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainoff import data
from trainoff.data import cache, mnist_large
from trainoff.data.dataset import DatasetRecipe, RawDataset, silent
from trainoff.errors import TrainoffError


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINOFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


def start_getting_digits(say: str) -> subprocess.Popen[str]:
    """Start another process that gets digits into the same cache, with its own progress function."""
    code = f"import os; from trainoff import data; data.get('digits', progress={say})"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_second_process_waits_and_finds_the_dataset_made(cache_folder):
    cache_folder.mkdir(parents=True)
    with (cache_folder / "digits.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = [start_getting_digits("lambda *step: print(*step, flush=True)") for _ in range(2)]
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("waiting for the process")
    has_written = ["writing x_train" in process.communicate()[0] for process in both]
    assert sorted(has_written) == [False, True]
    assert [process.returncode for process in both] == [0, 0]


@pytest.mark.parametrize("moment", ["writing x_train", "writing y_test"])
def test_a_killed_process_leaves_no_readable_dataset(cache_folder, moment):
    killed = start_getting_digits(f"lambda what, *_: what == {moment!r} and os.kill(os.getpid(), 9)")
    killed.communicate()
    assert killed.returncode == -9
    with pytest.raises(TrainoffError, match="digits is not in the cache"):
        data.load("digits")
    assert len(data.get("digits").y_train) == 1437
    assert sorted(path.name for path in cache_folder.iterdir()) == ["digits", "digits.lock"]


def test_a_full_disk_is_an_error_and_leaves_nothing(cache_folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(TrainoffError, match=r"cannot be written \(File too large\); free some space"):
            data.get("digits")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in cache_folder.iterdir()] == ["digits.lock"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "digits"}'])
def test_a_broken_manifest_is_noticed_and_repaired(cache_folder, text):
    data.get("digits")
    (cache_folder / "digits" / "manifest.json").write_text(text)
    with pytest.raises(TrainoffError, match=r"is damaged \(its manifest.json cannot be read\)"):
        data.load("digits")
    assert [whole for _, whole, _ in data.verify()] == [False]
    assert data.get("digits").classes == 10


def test_own_data_whose_manifest_is_lost_can_only_be_deleted(cache_folder):
    (cache_folder / "own-0123").mkdir(parents=True)
    ((_, whole, sentence),) = data.verify()
    assert not whole
    assert sentence.endswith("is damaged (its manifest.json cannot be read); delete that folder")


def test_a_dataset_with_another_identity_is_not_used():
    recipe = DatasetRecipe("mine", "mine", "mine", "older", lambda folder, say: made)
    made = RawDataset(np.eye(3), np.arange(3), np.eye(2, 3), np.arange(2), classes=3)
    cache.store(recipe, made, silent)
    assert cache.read(recipe) is not None
    assert cache.read(replace(recipe, identity="newer")) is None


def test_bytes_become_float32_by_255():
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 64)
    recipe = DatasetRecipe("mine", "mine", "mine", "id", lambda folder, say: made)
    made = RawDataset(pixels, np.arange(4), pixels, np.arange(4), classes=4, image=(8, 8), scale=255)
    cache.store(recipe, made, silent)
    stored = cache.read(recipe)
    assert stored is not None
    assert np.array_equal(stored.x_train, pixels.astype(np.float32) / np.float32(255))
    assert stored.image == (8, 8)


def test_more_rows_than_the_dataset_has_are_refused():
    digits = data.get("digits")
    for rows in (0, 1438):
        with pytest.raises(TrainoffError, match=f"train_rows = {rows}, but digits has 1437 training rows"):
            digits.head(rows)


def test_the_catalogue_lists_shipped_and_own_datasets(tmp_path: Path):
    (tmp_path / "my.csv").write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(10)))
    data.get(tmp_path / "my.csv")
    data.get("digits")
    entries = {entry.name: entry for entry in data.catalogue()}
    own = str(tmp_path / "my.csv")
    assert list(entries) == ["mnist", "digits", "mnist-large", "emnist-digits", "clicks", "open-bandit", own]
    assert [entry.name for entry in entries.values() if entry.cached] == ["digits", own]
    assert (entries[own].train_rows, entries[own].test_rows, entries[own].classes) == (8, 2, 2)
    assert entries["digits"].bytes == 1797 * (64 * 4 + 8)


def test_a_misspelt_name_is_an_error_with_a_suggestion():
    with pytest.raises(TrainoffError, match=r"there is no dataset 'minst'; did you mean mnist\?"):
        data.get("minst")
    with pytest.raises(TrainoffError, match="there is no dataset 'birds'; there are mnist, digits, mnist-large"):
        data.identity("birds")


def test_identities_are_known_without_any_data(cache_folder):
    names = ["mnist", "digits", "mnist-large", "emnist-digits", "clicks", "open-bandit"]
    assert len({data.identity(name) for name in names}) == 6
    assert not cache_folder.exists()


def test_augmentation_is_the_same_on_every_machine():
    pixels = np.random.default_rng(3).integers(0, 256, (100, 784)).astype(np.float32) / np.float32(255)
    made = mnist_large.copies(pixels, "train", lambda done: None)
    assert hashlib.sha256(made.tobytes()).hexdigest()[:16] == "ba7e1922a173e286"


def test_shifts_by_whole_and_half_pixels():
    images = np.random.default_rng(4).integers(0, 256, (2, 28, 28), dtype=np.uint8)
    one = 1 << 16

    def shifted(across: int, down: int) -> np.ndarray:
        maps = np.array([[[one, 0, across], [0, one, down]]] * 2, np.int32)
        return mnist_large.warp(images.reshape(2, -1), maps).reshape(2, 28, 28)

    assert np.array_equal(shifted(-2 * one, 0)[:, :, 2:], images[:, :, :-2])
    assert not shifted(-2 * one, 0)[:, :, :2].any()
    wide = images.astype(int)
    assert np.array_equal(shifted(0, one // 2)[:, :-1], (wide[:, :-1] + wide[:, 1:] + 1) // 2)
