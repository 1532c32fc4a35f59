"""Yahoo's tensorflowonspark, with the parts replaced that do not work. docs/engines/tf-on-spark.md lists them."""

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
from collections.abc import Iterator
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
SIGNATURE_BYTES = 32  # of an HMAC with SHA-256
MAX_BYTES = 2**24  # of a message about a node
TIMEOUT_S = 10.0
MANAGER = Path("manager.pid")  # in the folder of an executor

Parts = Iterator[int]


def load() -> types.SimpleNamespace:
    """Import the package's modules without TensorFlow, which they import for functions that are not used here.

    It would take every Python process of Spark six seconds of CPU time and half a gigabyte.
    """
    replaced = "tensorflow" not in sys.modules
    if replaced:
        sys.modules["tensorflow"] = types.ModuleType("tensorflow")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing pkg_resources warns that it is deprecated
            package = types.SimpleNamespace(**{name: import_module(f"tensorflowonspark.{name}") for name in MODULES})
    finally:
        if replaced:
            del sys.modules["tensorflow"]
    logging.getLogger("tensorflowonspark").setLevel(logging.ERROR)  # it logs the keys to its queues
    return package


def patch(host: str, secret: bytes) -> types.SimpleNamespace:
    """Patch the package's modules for one process.

    `host` is the driver's address; `secret` is known to the trial alone.
    """
    package = load()

    def send(_: Any, sock: socket.socket, message: Any) -> None:
        data = pickle.dumps(message)
        sock.sendall(struct.pack(">I", len(data)) + hmac.digest(secret, data, "sha256") + data)

    def receive(_: Any, sock: socket.socket) -> Any:
        sock.settimeout(TIMEOUT_S)  # so that a silent client does not block the others
        (length,) = struct.unpack(">I", _read_exactly(sock, 4))
        if length > MAX_BYTES:
            raise ConnectionError("a message that is too long to be one of ours")
        signature, data = _read_exactly(sock, SIGNATURE_BYTES), _read_exactly(sock, length)
        if not hmac.compare_digest(signature, hmac.digest(secret, data, "sha256")):
            raise ConnectionError("a message that was not signed by this trial")
        return pickle.loads(data)

    # Any host that could reach the driver's port could have it execute a pickle. Now messages are signed.
    package.reservation.MessageSocket.send, package.reservation.MessageSocket.receive = send, receive
    # It listened on every interface, and reported the address of the one towards a host on the Internet.
    package.reservation.Server.start_listening_socket = lambda server: socket.create_server((host, 0))
    package.util.get_ip_address = partial(address_towards, host)
    return package


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := sock.recv(count - len(data))):
            raise ConnectionError("the connection ended in the middle of a message")
        data += part
    return data


def run_node(host: str, secret: bytes, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Parts) -> Any:
    """Do what the package does on every executor. Run by Spark."""
    package = patch(host, secret)
    os.environ.setdefault("PYTHONPATH", "")  # where it looks for TensorBoard, set or not
    multiprocessing.set_start_method("fork", force=True)  # it starts nested functions as processes
    # The addresses of sockets have at most 107 characters, and a trial's folder may be deep.
    current_process()._config["tempdir"] = "."  # type: ignore[attr-defined]  # there is no public way to set it
    manager_class, own_host = package.TFManager.TFManager, package.util.get_ip_address()

    # Its managers listened on every interface; they write the PID of their process to a file, for `end_manager`.
    def init(manager: Any, address: Any = None, authkey: Any = None) -> None:
        BaseManager.__init__(manager, (own_host, 0) if address == ("", 0) else address, authkey)

    def start(manager: Any) -> None:
        BaseManager.start(manager)
        MANAGER.write_text(str(manager._process.pid))

    manager_class.__init__, manager_class.start = init, start
    return package.TFSparkNode.run(*args, **kwargs)(parts)


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
        """Return the package's manager on this executor, which holds the queues to its TensorFlow process."""
        package = patch(self.host, self.secret)
        host, executor = package.util.get_ip_address(), package.util.read_executor_id()
        return package.TFSparkNode._get_manager(self.nodes, host, executor)
