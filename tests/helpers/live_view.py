"""Start a live view as a user does, send it requests as a browser does, and read its events."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from helpers.running import HANGS_S, command, environment

Event = tuple[str, Any]


@contextmanager
def view(folder: Path, *options: object) -> Iterator[str]:
    """Run `trainoff view` and yield the address that it prints; Ctrl-C must end it with exit code 0."""
    process = subprocess.Popen(
        command("view", folder, "--no-browser", *options), env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield found[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(HANGS_S) == 0
        assert "the view has ended" in process.stdout.read()
    finally:
        process.kill()
        process.wait()


def port_of(address: str) -> int:
    found = re.search(r":(\d+)/", address)
    assert found
    return int(found[1])


def get(port: int, path: str = "/", method: str = "GET", **headers: str) -> HTTPResponse:
    """Send a request and return the response, with its `body` unless that is an endless stream of events."""
    connection = HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    endless = response.status == 200 and path.startswith("/events")
    response.body = b"" if endless else response.read()  # type: ignore[attr-defined]  # read by tests
    connection.close()
    return response


def data(port: int) -> dict[str, Any]:
    """Return the data that the page is made of."""
    content: dict[str, Any] = json.loads(get(port, "/data.json").body)  # type: ignore[attr-defined]  # see get
    return content


class Listener:
    """The stream of events of one open page, as (name, data)."""

    def __init__(self, port: int, **headers: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
        self._connection.request(
            "GET", "/events", headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        self.response = self._connection.getresponse()
        self.last_id = ""

    def next(self) -> Event:
        """Return the next event; fail if there is none for twenty heartbeats, which is five minutes."""
        name, silent = "", 0
        while True:
            line = self.response.readline().decode()
            assert line, "the view has closed the connection"
            silent += line.startswith(":")
            assert silent < 20, "nothing has happened"
            if line.startswith("id: "):
                self.last_id = line.removeprefix("id: ").strip()
            elif line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))

    def until(self, wanted: Callable[[str, Any], object]) -> list[Event]:
        """Return all events up to the first that is wanted."""
        events = [self.next()]
        while not wanted(*events[-1]):
            events.append(self.next())
        return events

    def close(self) -> None:
        self.response.close()
        self._connection.close()
