"""Ports for servers whose addresses must be known before they start, and the address that others see."""

from __future__ import annotations

import errno
import random
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"  # the interface's name, which gloo wants to know
# Below those that the system gives to callers: one who calls before the server listens could be given its very port.
FIRST, LAST = 20_001, 32_000  # and above 19,999, which Ray keeps for its workers
TRIES = 1000
_SYSTEM = random.SystemRandom()  # two processes with one seed would try the same ports
DISCARD = 9  # a port to ask the way to; nothing is sent there


def free_ports(hosts: Sequence[str]) -> list[int]:
    """A free port on each host; in a trial's own network nobody else can take them meanwhile.

    On another machine than this one it is a guess.
    """
    with ExitStack() as stack:
        return [_hold(stack.enter_context(socket.socket()), host) for host in hosts]


def address_towards(host: str) -> str:
    """This machine's address on the way to another, which the system knows without a packet being sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, DISCARD))
        found: str = way.getsockname()[0]
        return found


def _hold(held: socket.socket, host: str) -> int:
    """Bind a socket to a port that nobody has, and return it."""
    for _ in range(TRIES):
        port = _SYSTEM.randint(FIRST, LAST)
        try:
            held.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:  # an address of another machine: only there it is known
                return port
            continue
        return port
    raise OSError(f"{host} has no free port between {FIRST} and {LAST}")
