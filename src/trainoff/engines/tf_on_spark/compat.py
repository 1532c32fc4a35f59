"""Yahoo's tensorflowonspark, with those of its parts replaced that stood in the way.

docs/engines/tf-on-spark.md lists them. They are few, and all are here.
"""

from __future__ import annotations

import hmac
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.managers import BaseManager
from multiprocessing.process import current_process
from pathlib import Path
from typing import Any

from trainoff.clusters.local import address_towards

MODULES = ("TFCluster", "TFManager", "TFSparkNode", "reservation", "util")
SIGNATURE = 32  # bytes of an HMAC with SHA-256
MOST_BYTES = 2**24  # of a message about a node
PATIENCE_S = 10.0
MANAGER = Path("manager.pid")  # in the folder of an executor

Parts = Iterator[int]


def load() -> types.SimpleNamespace:
    """The package's modules, without TensorFlow: they import it for functions that are not used here.

    In every Python process of Spark that would be six seconds of computing and half a gigabyte.
    """
    stand_in = "tensorflow" not in sys.modules
    if stand_in:
        sys.modules["tensorflow"] = types.ModuleType("tensorflow")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pkg_resources is deprecated, and says so
            package = types.SimpleNamespace(**{name: import_module(f"tensorflowonspark.{name}") for name in MODULES})
    finally:
        if stand_in:
            del sys.modules["tensorflow"]
    logging.getLogger("tensorflowonspark").setLevel(logging.ERROR)  # it logs the keys to its queues
    return package


def mend(host: str, secret: bytes) -> types.SimpleNamespace:
    """The package's modules for one process, mended.

    `host` is the driver's address, `secret` is known to the trial alone.
    """
    package = load()
    # Any host that could reach the driver's port could have it execute a pickle. Now messages are signed.
    package.reservation.MessageSocket.send = _send(secret)
    package.reservation.MessageSocket.receive = _receive(secret)
    # It listened on every interface, and took for its address the one on the way to a host on the Internet.
    package.reservation.Server.start_listening_socket = lambda server: socket.create_server((host, 0))
    package.util.get_ip_address = partial(address_towards, host)
    return package


def _send(secret: bytes) -> Callable[..., None]:
    def send(_: Any, sock: socket.socket, message: Any) -> None:
        data = pickle.dumps(message)
        sock.sendall(struct.pack(">I", len(data)) + hmac.digest(secret, data, "sha256") + data)

    return send


def _receive(secret: bytes) -> Callable[..., Any]:
    def receive(_: Any, sock: socket.socket) -> Any:
        sock.settimeout(PATIENCE_S)  # a caller that says nothing should not keep the others waiting
        (length,) = struct.unpack(">I", _exactly(sock, 4))
        if length > MOST_BYTES:
            raise ConnectionError("a message that is too long to be one of ours")
        signature, data = _exactly(sock, SIGNATURE), _exactly(sock, length)
        if not hmac.compare_digest(signature, hmac.digest(secret, data, "sha256")):
            raise ConnectionError("a message that was not signed by this trial")
        return pickle.loads(data)

    return receive


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := sock.recv(count - len(data))):
            raise ConnectionError("the connection ended in the middle of a message")
        data += part
    return data


def run_on_executors(package: types.SimpleNamespace, host: str, secret: bytes) -> None:
    """Have the executors mend the package, too, before they use it. For the driver."""
    package.TFSparkNode.run = lambda *given, **named: partial(_at_executor, host, secret, given, named)


def _at_executor(host: str, secret: bytes, given: tuple[Any, ...], named: dict[str, Any], parts: Parts) -> Any:
    """What the package runs on every executor."""
    package = mend(host, secret)
    os.environ.setdefault("PYTHONPATH", "")  # it looks for TensorBoard there without asking whether there is any
    multiprocessing.set_start_method("fork", force=True)  # it starts functions inside of functions as processes
    # Sockets have addresses of at most 107 characters, and a trial's folder may be deep.
    current_process()._config["tempdir"] = "."  # type: ignore[attr-defined]  # there is no other way to say it
    _mend_managers(package)
    return package.TFSparkNode.run(*given, **named)(parts)


def _mend_managers(package: types.SimpleNamespace) -> None:
    """Let its managers listen on the address of this machine alone, and leave the number of their process behind."""
    kind, here = package.TFManager.TFManager, package.util.get_ip_address()

    def make(manager: Any, address: Any = None, authkey: Any = None) -> None:
        BaseManager.__init__(manager, (here, 0) if address == ("", 0) else address, authkey)

    def start(manager: Any) -> None:
        BaseManager.start(manager)
        MANAGER.write_text(str(manager._process.pid))

    kind.__init__, kind.start = make, start


def end_manager() -> None:
    """End the manager of this executor, whichever of its Python processes has started it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(MANAGER.read_text()), signal.SIGTERM)
        MANAGER.unlink()


@dataclass(frozen=True)
class Access:
    """What Spark's tasks need to reach the TensorFlow processes of their executors."""

    nodes: Any  # the package's list of them
    host: str  # the driver's
    secret: bytes

    def manager(self) -> Any:
        """The package's manager on this executor, which holds the queues to its TensorFlow process."""
        package = mend(self.host, self.secret)
        here, executor = package.util.get_ip_address(), package.util.read_executor_id()
        return package.TFSparkNode._get_manager(self.nodes, here, executor)
