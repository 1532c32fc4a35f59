"""Ports for servers whose addresses must be known before they start."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"  # the interface's name, which gloo wants to know


def free_ports(hosts: Sequence[str]) -> list[int]:
    """A free port on each host, all different; in a trial's own network nobody else can take them meanwhile."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in hosts]
        for each, host in zip(held, hosts, strict=True):
            each.bind((host, 0))
        return [each.getsockname()[1] for each in held]
