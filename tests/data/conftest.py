"""What the tests of data/ share: a cache of their own, a small MNIST, and a web server on loopback."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from trainoff.data.mnist import Payload


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no setting of the person who runs the tests."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRAINOFF_CACHE", str(folder))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("TRAINOFF_DATA", raising=False)
    monkeypatch.delenv("TRAINOFF_OFFLINE", raising=False)
    return folder


def idx_bytes(values: np.ndarray) -> bytes:
    """An array of bytes as an IDX file."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def small_files(train: int = 60, test: int = 20) -> dict[str, bytes]:
    """The four files of MNIST with fewer rows, under their usual names."""
    rng = np.random.default_rng(1)
    return {
        "train-images-idx3-ubyte": idx_bytes(rng.integers(0, 256, (train, 28, 28))),
        "train-labels-idx1-ubyte": idx_bytes(np.arange(train) % 10),
        "t10k-images-idx3-ubyte": idx_bytes(rng.integers(0, 256, (test, 28, 28))),
        "t10k-labels-idx1-ubyte": idx_bytes(np.arange(test) % 10),
    }


def payload_of(files: dict[str, bytes], *addresses: str, wheel: str | None = None) -> Payload:
    """What trainoff would have to know of those files to accept them."""
    return Payload({name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}, addresses, wheel)


@dataclass
class Web:
    """A web server that knows how to send the rest of a file, and that can break off in the middle."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)  # after how many bytes each of the next answers breaks off
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range of every request

    def publish(self, files: dict[str, bytes]) -> None:
        self.files = {f"/{name}.gz": gzip.compress(raw) for name, raw in files.items()}


@pytest.fixture
def web() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            site.asked.append((self.path, wanted))
            if self.path not in site.files:
                return self.send_error(404)
            body, start = site.files[self.path], 0
            if wanted and site.ranges:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(body):
                    return self.send_error(416)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            stop = start + site.breaks.pop(0) if site.breaks else len(body)
            self.wfile.write(body[start:stop])
            return None

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Web(f"http://127.0.0.1:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield site
    server.shutdown()
    server.server_close()
    thread.join()
