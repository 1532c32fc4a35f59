"""The live view's server: access, responses, and that it is read-only."""

import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from helpers.live_view import Listener, data, get, port_of, view
from helpers.records import store, trained
from helpers.running import HANGS_S, command, environment, trainoff
from trainoff.errors import TrainoffError
from trainoff.records import RecordCache
from trainoff.report.live import Auth, FolderWatcher, PageCache, Server, full_log, is_loopback, tail

TOKEN = "a-token-of-some-length"


@contextmanager
def served(folder: Path, token: str | None = None) -> Iterator[int]:
    """Serve a folder from this process; yield the port."""
    with FolderWatcher(folder) as watcher:
        server = Server(("127.0.0.1", 0), Auth("127.0.0.1", token), watcher, PageCache(folder, watcher))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        with server:
            thread.start()
            try:
                yield server.port
            finally:
                server.shutdown()
                thread.join()


@pytest.fixture
def folder(tmp_path):
    return store(tmp_path / "tiny", trained("numpy-1"), trained("torch-2", engine="torch"))


def test_the_page_its_data_and_the_logs_are_served(folder):
    with served(folder) as port:
        page = get(port)
        assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert {record["trial_id"] for record in data(port)["records"]} == {"numpy-1", "torch-2"}
        log = get(port, "/log/torch-2")
        assert (log.status, log.body, log.headers["Content-Type"]) == (
            200,
            b"the log of torch-2\n",
            "text/plain; charset=utf-8",
        )
        for path in ("/", "/data.json", "/log/torch-2", "/nowhere"):
            response = get(port, path)
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Cache-Control"] == "no-store"
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert "Access-Control-Allow-Origin" not in response.headers
            assert "Python" not in response.headers["Server"]
        head = get(port, method="HEAD")
        assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", page.headers["Content-Length"])
        assert get(port, "/events", method="HEAD").headers["Content-Type"] == "text/event-stream"


def test_unchanged_data_are_not_sent_again(folder):
    with served(folder) as port:
        tag = get(port, "/data.json").headers["ETag"]
        again = get(port, "/data.json", If_None_Match=tag)
        assert (again.status, again.body) == (304, b"")
    with served(folder) as port:
        assert get(port, "/data.json", If_None_Match=tag).status == 200, "another view has other tags"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_get_and_head_are_allowed(folder, method):
    with served(folder) as port:
        response = get(port, "/log/numpy-1", method=method)
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
        assert response.headers["Connection"] == "close", "a request body must not be read as a request"


@pytest.mark.parametrize(
    "path",
    [
        "/log/../../../etc/passwd",
        "/log/..%2f..%2f..%2fetc%2fpasswd",
        "/log//etc/passwd",
        "/log/.",
        "/log/..",
        "/log/",
        "/log/numpy-1/../../secret",
        "/log/numpy-1%00",
        "/numpy-1/record.json",
        "//etc/passwd",
        "/../tiny/numpy-1/log.txt",
    ],
)
def test_no_path_of_a_request_reaches_the_file_system(folder, path):
    (folder.parent / "secret" / "log.txt").parent.mkdir()
    (folder.parent / "secret" / "log.txt").write_text("secret")
    with served(folder) as port:
        response = get(port, path)
        assert response.status == 404
        assert b"root:" not in response.body
        assert b"secret" not in response.body


def test_a_log_that_is_a_link_or_a_pipe_is_not_followed(folder, tmp_path):
    (tmp_path / "secret").write_text("secret")
    for name, make in (("numpy-1", lambda path: path.symlink_to(tmp_path / "secret")), ("torch-2", os.mkfifo)):
        (folder / name / "log.txt").unlink()
        make(folder / name / "log.txt")
    with served(folder) as port:
        assert get(port, "/log/numpy-1").body == b""
        assert get(port, "/log/torch-2").body == b""


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::", "", "10.0.0.1"])
def test_a_request_for_another_host_is_refused(folder, host):
    with served(folder) as port:
        for path in ("/", "/data.json", "/events", "/log/numpy-1"):
            assert get(port, path, Host=host).status == 421


def test_a_request_without_a_host_or_with_two_is_refused(folder):
    with served(folder) as port:
        for head in (b"", b"Host: 127.0.0.1\r\nHost: evil.example\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=HANGS_S) as connection:
                connection.sendall(b"GET /data.json HTTP/1.1\r\n" + head + b"\r\n")
                assert connection.makefile("rb").readline().split()[1] == b"421"


@pytest.mark.parametrize("host", ["127.0.0.1:9999", "localhost", "LOCALHOST:1", "[::1]:80"])
def test_every_name_of_this_machine_and_every_port_is_accepted(folder, host):
    with served(folder) as port:
        assert get(port, Host=host).status == 200


def test_a_wildcard_address_accepts_ip_addresses_and_the_hosts_name():
    auth = Auth("0.0.0.0", TOKEN)
    assert auth.knows_host("192.168.1.7:8650")
    assert auth.knows_host(f"{socket.gethostname()}:8650")
    assert not auth.knows_host("evil.example:8650")
    assert not Auth("192.168.1.7", TOKEN).knows_host("192.168.1.8")


def test_with_a_token_nothing_is_served_without_it(folder):
    with served(folder, TOKEN) as port:
        for path in ("/", "/data.json", "/events", "/log/numpy-1", "/nowhere"):
            assert get(port, path).status == 403
            assert get(port, f"{path}?token={TOKEN}x").status == 403
            assert get(port, path, Cookie=f"trainoff-{port}=wrong").status == 403
            assert get(port, path, Cookie="\x01;=;;").status == 403
        assert get(port, f"/data.json?token={TOKEN}").status == 200


def test_the_token_moves_from_the_address_to_a_cookie(folder):
    with served(folder, TOKEN) as port:
        entry = get(port, f"/?token={TOKEN}")
        assert (entry.status, entry.headers["Location"]) == (303, "/")
        cookie = entry.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        kept = cookie.split(";")[0]
        assert get(port, "/", Cookie=kept).status == 200
        assert get(port, "/data.json", Cookie=kept).status == 200
        listener = Listener(port, Cookie=kept)
        assert listener.next()[0] == "progress"
        listener.close()


def test_only_loopback_needs_no_token(folder):
    assert [is_loopback(each) for each in ("127.0.0.1", "::1", "localhost", "127.8.8.8")] == [True] * 4
    assert not any(is_loopback(each) for each in ("0.0.0.0", "::", "192.168.1.7", "a.name", "localhost.evil.example"))
    with view(folder) as address:
        assert "token" not in address
    with view(folder, "--token") as address:
        assert get(port_of(address)).status == 403
        token = address.partition("?token=")[2]
        assert len(token) == 32
        assert get(port_of(address), f"/data.json?token={token}").status == 200
    with view(folder, "--token") as address:
        assert address.partition("?token=")[2] != token, "every view has its own token"


def test_a_taken_port_and_other_mistakes_are_one_line_errors(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = trainoff("view", folder, "--port", port, "--no-browser")
    assert done.returncode == 2
    error = f"trainoff: port {port} is taken; choose another with --port, or leave --port out to use any free port\n"
    assert done.stderr == error
    done = trainoff("view", folder, "--host", "203.0.113.7", "--no-browser")
    assert "203.0.113.7 is not an address of this machine" in done.stderr
    done = trainoff("view", folder, "--port", 70000, "--no-browser")
    assert done.stderr == "trainoff: --port 70000: expected a number from 0 (any free port) to 65535\n"
    done = trainoff("view", folder / "numpy-1" / "log.txt", "--no-browser")
    assert "this is a file, not a folder of records" in done.stderr


def test_two_views_use_different_ports(folder):
    with view(folder) as first, view(folder) as second:
        assert port_of(first) != port_of(second)
        assert get(port_of(first)).status == get(port_of(second)).status == 200


def test_a_page_that_reconnects_gets_only_new_events(folder):
    with served(folder) as port:
        first = Listener(port)
        events = first.until(lambda name, _: name == "records")
        assert [name for name, _ in events] == ["progress", "records"]
        assert events[0][1] | {"gone_s": 0} == {
            "done": 2, "total": None, "left_s": None, "gone_s": 0, "state": "ended", "note": None, "running": [],
        }  # fmt: skip
        first.close()
        back = Listener(port, Last_Event_ID=first.last_id)
        assert back.next()[0] == "progress"
        store(folder, trained("jax-3", engine="jax"))
        assert "records" in [name for name, _ in back.until(lambda name, _: name == "records")]
        assert len(data(port)["records"]) == 3
        back.close()


def test_a_new_page_is_not_told_to_reload(folder):
    with served(folder) as port:
        (seen,) = re.findall(rb'data-live="([^"]+)"', get(port).body)
        connection = HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
        connection.request("GET", f"/events?seen={seen.decode()}")
        response = connection.getresponse()
        lines = []
        while b"event: records\n" not in lines:
            lines.append(response.readline())
            if lines[-1] == b"event: progress\n" and lines.count(lines[-1]) == 1:
                store(folder, trained("jax-3", engine="jax"))
        assert response.readline() != f"id: {seen.decode()}\n".encode(), "only new records are announced"
        connection.close()


def test_pages_share_one_folder_watcher_and_one_too_many_is_refused(folder, monkeypatch):
    monkeypatch.setattr("trainoff.report.live.MOST_SUBSCRIBERS", 3)
    with served(folder) as port:
        pages = [Listener(port) for _ in range(3)]
        assert [page.next()[0] for page in pages] == ["progress"] * 3
        assert sum(thread.name == "folder watcher" for thread in threading.enumerate()) == 1
        assert get(port, "/events").status == 503
        for page in pages:
            page.close()


def test_a_record_is_read_once(folder, monkeypatch):
    from trainoff.records import store as reading

    read, real_read = [], reading.read
    monkeypatch.setattr(reading, "read", lambda path: read.append(Path(path).name) or real_read(path))
    cached = RecordCache(folder)
    assert cached.refresh()
    assert sorted(read) == ["numpy-1", "torch-2"]
    assert not cached.refresh()
    store(folder, trained("jax-3"))
    assert cached.refresh()
    assert sorted(read) == ["jax-3", "numpy-1", "torch-2"]
    (folder / "jax-3" / "record.json").unlink()
    (folder / "jax-3" / "curve.parquet").unlink()
    (folder / "jax-3" / "samples.parquet").unlink()
    (folder / "jax-3" / "log.txt").unlink()
    (folder / "jax-3").rmdir()
    assert cached.refresh()
    assert sorted(record.trial_id for record in cached.records) == ["numpy-1", "torch-2"]


def test_a_folder_that_does_not_exist_yet_is_watched(tmp_path):
    out = tmp_path / "out"
    cached = RecordCache(out)
    assert not cached.refresh()
    store(out / "a", trained("numpy-1", study="a"))
    store(out / "b", trained("numpy-1", study="b"))
    assert cached.refresh()
    assert len(cached.records) == 2
    assert cached.folder_of("numpy-1").name == "numpy-1"
    assert cached.folder_of("../b") is None


def test_a_damaged_record_is_left_out_until_it_is_complete(folder):
    whole = (folder / "numpy-1" / "record.json").read_bytes()
    (folder / "numpy-1" / "record.json").write_text("{")
    os.utime(
        folder / "numpy-1", (0, 0)
    )  # long ago: two changes within one tick of the file system's clock look like one
    cached = RecordCache(folder)
    cached.refresh()
    assert [record.trial_id for record in cached.records] == ["torch-2"]
    part = folder / "numpy-1" / "record.json.part"
    part.write_bytes(whole)
    part.rename(folder / "numpy-1" / "record.json")
    assert cached.refresh()
    assert len(cached.records) == 2


def test_new_records_are_announced_later_if_the_page_takes_long_to_make(folder):
    watcher = FolderWatcher(folder)
    assert watcher.state().records == 1
    watcher.back_off(1000.0)
    store(folder, trained("jax-3"))
    watcher._refreshed_at -= 10  # as if that much time had passed
    assert watcher.state().records == 1
    watcher._backed_off_until = watcher._refreshed_at
    watcher._refreshed_at -= 10
    assert watcher.state().records == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": 0}', '{"at": "now", "done": null, "running": 5}'])
def test_a_malformed_progress_file_is_ignored(folder, text):
    scratch = folder / ".staging" / "run-1"
    scratch.mkdir()
    (scratch / "progress.json").write_text(text)
    with served(folder) as port, closing(Listener(port)) as page:
        assert page.next()[1]["state"] == "ended"


def test_a_page_that_cannot_be_made_is_an_error_with_the_reason(folder, monkeypatch):
    def damaged(*_: object) -> None:
        raise TrainoffError("curve.parquet: this file is damaged")

    monkeypatch.setattr("trainoff.report.live.compose", damaged)
    with served(folder) as port:
        response = get(port)
        assert (response.status, response.body) == (500, b"curve.parquet: this file is damaged\n")
        assert response.headers["Content-Type"].startswith("text/plain")


@pytest.mark.browser
def test_the_content_security_policy_allows_fetch_and_events_only(folder, browser):
    """The page's requests carry the token's cookie, and the policy forbids requests to other hosts."""
    with view(folder, "--token") as address:
        page = browser.new_page()
        page.set_default_timeout(1000 * HANGS_S)
        page.goto(address)
        assert page.url == address.partition("?")[0], "the token has left the address"
        got = page.evaluate("fetch('data.json').then(answer => answer.json())")
        assert len(got["records"]) == 2
        event = page.evaluate(
            "new Promise(done => new EventSource('events').addEventListener('progress', event => done(event.data)))"
        )
        assert '"state": "ended"' in event
        for script, directive in (
            ("fetch('http://127.0.0.1:1/').catch(() => null)", "connect-src"),
            ("document.body.append(Object.assign(document.createElement('iframe'), {src: '/'}))", "frame-src"),
        ):
            listener = "document.addEventListener('securitypolicyviolation', event => done(event.effectiveDirective))"
            assert page.evaluate(f"new Promise(done => {{ {listener}; {script} }})") == directive
        page.close()


def test_the_tail_of_a_log_has_no_colours_and_no_overwritten_lines(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"x" * 100 + b"\n10%\r50%\r100%\r\n\x1b[31mred\x1b[0m \xff\n")
    assert tail(log, 30) == "100%\nred �\n"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.txt").write_text("hello\n")
    assert full_log(tmp_path).endswith("\n==== worker-0 ====\nhello\n")


def test_the_view_ends_with_exit_code_0_on_sigterm(folder):
    process = subprocess.Popen(
        command("view", folder, "--no-browser"), env=environment(), stdout=subprocess.PIPE, text=True
    )
    port = port_of(process.stdout.readline())
    page = Listener(port)
    page.next()
    process.terminate()
    assert process.wait(HANGS_S) == 0
    page.close()
    assert "the view has ended" in process.stdout.read()
