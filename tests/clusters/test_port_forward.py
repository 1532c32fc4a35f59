"""Port forwarding from a page in a trial's network namespace."""

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from helpers.running import HANGS_S
from trainoff.clusters.namespaces import PortForward, open_in_namespace


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a page of " + b"x" * 200_000)

    def log_message(self, *_):
        pass


@pytest.fixture
def page():
    server = HTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_a_page_is_reached_through_a_deep_folder(tmp_path, page):
    folder = tmp_path / ("deep" * 50)
    folder.mkdir()
    open_in_namespace(folder / "page-page", "127.0.0.1", page)
    forward = PortForward(folder / "page-page")
    for _ in range(3):
        assert urlopen(forward.url, timeout=HANGS_S).read() == b"a page of " + b"x" * 200_000
    forward.close()
    with pytest.raises(URLError):
        urlopen(forward.url, timeout=HANGS_S)


def test_a_page_that_does_not_answer_closes_the_connection(tmp_path):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # it does not listen, and nothing else can take its port
        open_in_namespace(tmp_path / "page-page", "127.0.0.1", reserved.getsockname()[1])
        forward = PortForward(tmp_path / "page-page")
        with pytest.raises((URLError, ConnectionError)):
            urlopen(forward.url, timeout=HANGS_S)
        forward.close()
