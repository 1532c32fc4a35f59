"""Who sends and receives how much: the kernel's own count of every TCP connection, added up by role.

Asked over netlink, as `ss -ti` does. A connection that comes and goes between two samples is missed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SOCK_DIAG = 4  # the netlink family
BY_FAMILY = 20  # the kind of request
DUMP = 0x301  # a request for all of them
TCP_INFO = 2  # the attribute with the counters
ALL_STATES = 0xFFF
HEADER, MESSAGE = 16, 72  # sizes of a netlink header and of what comes behind it
SOURCE, TARGET = slice(8, 24), slice(24, 40)  # the two addresses in that
INODE_AT = 68  # in that
ACKED_AT = 120  # in TCP_INFO: bytes that have arrived at the other end, then bytes received
DONE, ERROR = 3, 2

Traffic = tuple[int, int]  # sent, received


@dataclass
class Sockets:
    """The traffic of all connections, by the role of the process that holds them.

    `ears` are the network namespaces to ask in; by default it is this process's. With `between`, what never leaves its
    machine is left out.
    """

    ears: Sequence[socket.socket] | None = None
    between: bool = False
    _owners: dict[int, str] = field(default_factory=dict)  # inode -> role
    _now: dict[int, Traffic] = field(default_factory=dict)
    _ended: dict[str, Traffic] = field(default_factory=dict)

    def look(self, roles: Mapping[int, str]) -> None:
        """Take the counts as they are now; `roles` says which role each process has."""
        try:
            found = dict(connections(self.ears, self.between))
        except OSError:  # half an answer would look as if the rest had ended
            return
        for inode in self._now.keys() - found.keys():
            if role := self._owners.pop(inode, None):
                self._ended[role] = _add(self._ended.get(role, (0, 0)), self._now[inode])
        self._now = found
        if found.keys() - self._owners.keys():
            self._owners.update((inode, role) for pid, role in roles.items() for inode in held_by(pid))
            self._owners = {inode: role for inode, role in self._owners.items() if inode in found}

    def by_role(self) -> dict[str, Traffic]:
        """What each role has sent and received so far."""
        total = dict(self._ended)
        for inode, traffic in self._now.items():
            if role := self._owners.get(inode):
                total[role] = _add(total.get(role, (0, 0)), traffic)
        return total


def _add(one: Traffic, other: Traffic) -> Traffic:
    return one[0] + other[0], one[1] + other[1]


def held_by(pid: int) -> Iterator[int]:
    """The sockets that a process holds, by inode."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)  # noqa: PTH115  # a Path for each would cost several times as much
                if target.startswith("socket:["):
                    yield int(target[8:-1])


def connections(ears: Sequence[socket.socket] | None, between: bool) -> Iterator[tuple[int, Traffic]]:
    """Every TCP connection, as its inode with what it has sent and received. OSError where the kernel does not tell."""
    if not hasattr(socket, "AF_NETLINK"):
        return
    with contextlib.ExitStack() as stack:
        if ears is None:
            ears = [stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG))]
        for link in ears:
            for family in (socket.AF_INET, socket.AF_INET6):
                request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (TCP_INFO - 1), ALL_STATES)
                link.send(struct.pack("=IHHII", HEADER + len(request), BY_FAMILY, DUMP, 0, 0) + request)
                yield from _answers(link, between)


def _answers(link: socket.socket, between: bool) -> Iterator[tuple[int, Traffic]]:
    while True:
        data = link.recv(1 << 16)
        while len(data) >= HEADER:
            length, kind = struct.unpack_from("=IH", data)
            if kind == ERROR:
                raise OSError("the kernel does not tell")
            if kind == DONE:
                return
            message = data[HEADER:length]
            if not between or message[SOURCE] != message[TARGET]:
                yield from _connection(message)
            data = data[(length + 3) & ~3 :]


def _connection(message: bytes) -> Iterator[tuple[int, Traffic]]:
    (inode,) = struct.unpack_from("=I", message, INODE_AT)
    rest = message[MESSAGE:]
    while inode and len(rest) >= 4:
        length, kind = struct.unpack_from("=HH", rest)
        if kind == TCP_INFO and length >= 4 + ACKED_AT + 16:
            sent, received = struct.unpack_from("=QQ", rest, 4 + ACKED_AT)
            yield inode, (sent, received)
        if length < 4:
            return
        rest = rest[(length + 3) & ~3 :]
