"""The sampler: what the processes of a trial use, by role, and the load of the machine.

Cheap figures (CPU, RSS, I/O) are read at every sample. Expensive ones (PSS, for which the kernel walks the page tables,
and context switches, one file per thread) are read when the memory has changed or some seconds have passed, and never
for more than `EXPENSIVE_SHARE` of the time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from trainoff.engines.shared.watch import network_bytes

FIRST_S, PERIOD_S, LONGEST_S = 0.2, 1.0, 2.0  # between samples: short while memory grows, then longer
GROWTH = 1.1
SLOWING = 1.5
CHEAP_SHARE = 0.005  # of one core; samples that cost more are taken less often, down to one in LONGEST_S
EXPENSIVE_SHARE = 0.002
EXPENSIVE_EVERY_S = 5.0
YOUNG_S = 2.0  # a younger process may still be a fork that has not executed its program


@dataclass
class ProcessUsage:
    """What one process, or all processes of one role, have used so far."""

    role: str = ""
    processes: int = 0
    threads: int = 0
    user_s: float = 0.0
    system_s: float = 0.0
    rss: int = 0
    pss: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0
    switches: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def add(self, other: ProcessUsage) -> None:
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SUMMED = [name for name in ProcessUsage.__dataclass_fields__ if name != "role"]


@dataclass
class TrackedProcess:
    """A process that is sampled."""

    process: psutil.Process
    usage: ProcessUsage
    shared: float = 1.0  # PSS / RSS when PSS was last read
    rss_then: int = 0  # RSS at that time
    read_at: float = field(default=float("-inf"))


class Sampler:
    """Adds up what the descendants of this process use, by role."""

    def __init__(self, pid_namespace: bool, network: bool, sockets: Sockets | None = None) -> None:
        """The arguments say which namespaces this process and the trial share with no others."""
        self._pid_namespace = pid_namespace
        self._network = network
        self._tracked: dict[int, TrackedProcess] = {}
        self._retired: dict[str, ProcessUsage] = {}
        self._expensive_s = 0.0
        self._rss = 0
        self._start = time.monotonic()
        self._sockets = sockets or (Sockets() if network else None)
        self.period_s = FIRST_S

    def sample(self) -> list[dict[str, Any]]:
        """Return one row per role and one for the machine, and set `period_s`, the time to the next sample."""
        start, expensive_s = time.thread_time(), self._expensive_s
        alive = {process.pid: process for process in self._processes()}
        for pid in self._tracked.keys() - alive.keys():
            self._retire(pid)
        for pid, process in alive.items():
            tracked = self._tracked.get(pid)
            if tracked is None or not (tracked.process is process or tracked.process == process):
                tracked = self._tracked[pid] = TrackedProcess(process, ProcessUsage())
            self._read(tracked)
        self.sample_traffic()
        rows = [{**asdict(usage), "pss": round(usage.pss)} for usage in self.by_role().values()]
        rows.append({"role": "machine", **machine(self._network)})
        cheap_s = time.thread_time() - start - (self._expensive_s - expensive_s)
        self.period_s = self._next_period(cheap_s)
        return rows

    def _next_period(self, cheap_s: float) -> float:
        rss, before = sum(tracked.usage.rss for tracked in self._tracked.values()), self._rss
        self._rss = rss
        if rss > GROWTH * before:
            return FIRST_S
        if self.period_s < PERIOD_S:
            return min(PERIOD_S, self.period_s * SLOWING)
        return min(LONGEST_S, max(PERIOD_S, cheap_s / CHEAP_SHARE))

    def by_role(self) -> dict[str, ProcessUsage]:
        """Return what each role has used so far, including processes that have ended."""
        roles: dict[str, ProcessUsage] = {}
        for usage in [*self._retired.values(), *(tracked.usage for tracked in self._tracked.values())]:
            roles.setdefault(usage.role, ProcessUsage(usage.role)).add(usage)
        for role, (sent, received) in (self._sockets.by_role() if self._sockets else {}).items():
            roles.setdefault(role, ProcessUsage(role)).add(ProcessUsage(sent_bytes=sent, received_bytes=received))
        return roles

    def sample_traffic(self) -> None:
        """Read the counters of all connections; those of a connection are lost when it is closed."""
        if self._sockets:
            self._sockets.update({pid: tracked.usage.role for pid, tracked in self._tracked.items()})

    def final_sample(self, pid: int) -> None:
        """Read a process that has ended and is not reaped yet: its CPU time is final."""
        if pid in self._tracked:
            self._read(self._tracked[pid])
            self._retire(pid)

    def over_memory(self, limit: int) -> tuple[str, int] | None:
        """Return the role that uses the most memory, if that is more than `limit`, and how much it uses.

        If a role seems to be over the limit, the PSS of all processes is read again before it is reported.
        """

        def most() -> tuple[int, str]:
            return max(((round(usage.pss), role) for role, usage in self.by_role().items()), default=(0, ""))

        if most()[0] > limit:
            for tracked in self._tracked.values():
                self._read_expensive(tracked)
            used, role = most()
            if used > limit:
                return role, used
        return None

    def _processes(self) -> Iterator[psutil.Process]:
        me = os.getpid()
        if not self._pid_namespace:
            yield from psutil.Process(me).children(recursive=True)
            return
        for pid in psutil.pids():
            if pid != me:
                try:
                    yield self._tracked[pid].process if pid in self._tracked else psutil.Process(pid)
                except psutil.Error:
                    continue  # it has ended meanwhile

    def _read(self, tracked: TrackedProcess) -> None:
        usage, process = tracked.usage, tracked.process
        try:
            with process.oneshot():
                if not usage.role or time.time() - process.create_time() < YOUNG_S:
                    usage.role = role_of(process) or usage.role or "driver"
                times, memory = process.cpu_times(), process.memory_info()
                usage.processes, usage.threads = 1, process.num_threads()
                usage.user_s, usage.system_s, usage.rss = times.user, times.system, memory.rss
                usage.pss = memory.rss * tracked.shared
                io = process.io_counters()
                usage.read_bytes, usage.write_bytes = io.read_bytes, io.write_bytes
        except (psutil.Error, OSError, AttributeError):
            return  # it has ended, is a zombie, or psutil lacks a figure on this system
        if self._expensive_is_due(tracked):
            self._read_expensive(tracked)

    def _expensive_is_due(self, tracked: TrackedProcess) -> bool:
        now = time.monotonic()
        if self._expensive_s > EXPENSIVE_SHARE * (now - self._start) + 0.001:
            return False
        changed = abs(tracked.usage.rss - tracked.rss_then) > 0.05 * tracked.rss_then
        return changed or now - tracked.read_at > EXPENSIVE_EVERY_S

    def _read_expensive(self, tracked: TrackedProcess) -> None:
        start = time.thread_time()
        usage = tracked.usage
        try:
            full = tracked.process.memory_full_info()
            usage.pss = getattr(full, "pss", full.rss)
            usage.switches = _switches(tracked.process.pid)
        except (psutil.Error, OSError):
            return
        tracked.shared = usage.pss / full.rss if full.rss else 1.0
        tracked.rss_then, tracked.read_at = full.rss, time.monotonic()
        self._expensive_s += time.thread_time() - start

    def _retire(self, pid: int) -> None:
        usage = self._tracked.pop(pid).usage
        remaining = replace(usage, processes=0, threads=0, rss=0, pss=0.0)
        self._retired.setdefault(usage.role, ProcessUsage(usage.role)).add(remaining)


def role_of(process: psutil.Process) -> str | None:
    """Return the role that a process was given or has inherited; None if it has ended."""
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get("TRAINOFF_ROLE")
    return None


def _switches(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines()[-2:]:
            total += int(line.rsplit(None, 1)[1])
    return total


def machine(network: bool) -> dict[str, Any]:
    """Return the state of the machine: load, runnable processes, busy and stolen time, pressure, network bytes."""
    times = psutil.cpu_times()
    row: dict[str, Any] = {
        "load": os.getloadavg()[0],
        "busy_s": sum(times) - times.idle - getattr(times, "iowait", 0.0),
        "steal_s": getattr(times, "steal", 0.0),
        **dict.fromkeys(("runnable", "pressure_cpu_s", "pressure_memory_s", "pressure_io_s")),
        "network_bytes": network_bytes() if network else None,
    }
    with contextlib.suppress(OSError):
        row["runnable"] = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    for what in ("cpu", "memory", "io"):
        with contextlib.suppress(OSError):  # the seconds since boot in which a task waited (pressure stall information)
            total = Path(f"/proc/pressure/{what}").read_text().split("total=")[1].split()[0]
            row[f"pressure_{what}_s"] = int(total) / 1e6
    return row


# The kernel's TCP counters (sock_diag) are read by hand: pyroute2 needs 18 times the CPU for 200 connections.
SOCK_DIAG = 4  # the netlink family
BY_FAMILY = 20  # the type of the request
DUMP = 0x301  # the request's flags: all connections
TCP_INFO = 2  # the attribute with the counters
ALL_STATES = 0xFFF
HEADER, MESSAGE = 16, 72  # sizes of a netlink header and of the message after it
SOURCE, TARGET = slice(8, 24), slice(24, 40)  # the addresses in the message
INODE_AT = 68  # in the message
ACKED_AT = 120  # in TCP_INFO: the bytes acknowledged by the other end, then the bytes received
DONE, ERROR = 3, 2

Traffic = tuple[int, int]  # sent, received


@dataclass
class Sockets:
    """The traffic of all TCP connections, by the role of the process that holds them.

    `netlinks` are netlink sockets in the network namespaces to read; by default this process's namespace is read. With
    `between_nodes`, connections within a node are left out.
    """

    netlinks: Sequence[socket.socket] | None = None
    between_nodes: bool = False
    _owners: dict[int, str] = field(default_factory=dict)  # inode -> role
    _open: dict[int, Traffic] = field(default_factory=dict)
    _closed: dict[str, Traffic] = field(default_factory=dict)

    def update(self, roles: Mapping[int, str]) -> None:
        """Read the current counters; `roles` gives the role of each process."""
        try:
            found = dict(connections(self.netlinks, self.between_nodes))
        except OSError:  # with a part of the connections the rest would count as closed
            return
        for inode in self._open.keys() - found.keys():
            if role := self._owners.pop(inode, None):
                self._closed[role] = _add(self._closed.get(role, (0, 0)), self._open[inode])
        self._open = found
        if found.keys() - self._owners.keys():
            self._owners.update((inode, role) for pid, role in roles.items() for inode in socket_inodes(pid))
            self._owners = {inode: role for inode, role in self._owners.items() if inode in found}

    def by_role(self) -> dict[str, Traffic]:
        """Return what each role has sent and received so far."""
        total = dict(self._closed)
        for inode, traffic in self._open.items():
            if role := self._owners.get(inode):
                total[role] = _add(total.get(role, (0, 0)), traffic)
        return total


def _add(one: Traffic, other: Traffic) -> Traffic:
    return one[0] + other[0], one[1] + other[1]


def socket_inodes(pid: int) -> Iterator[int]:
    """Yield the inodes of a process's sockets."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)  # noqa: PTH115  # a Path for each would cost several times as much
                if target.startswith("socket:["):
                    yield int(target[8:-1])


def open_netlink() -> socket.socket:
    """Open a netlink socket in the network namespace of this thread."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)


def connections(netlinks: Sequence[socket.socket] | None, between_nodes: bool) -> Iterator[tuple[int, Traffic]]:
    """Yield the inode and the traffic of every TCP connection; raise OSError if the kernel refuses."""
    if not hasattr(socket, "AF_NETLINK") or (netlinks is None and not _any_connection()):
        return
    with contextlib.ExitStack() as stack:
        for netlink in [stack.enter_context(open_netlink())] if netlinks is None else netlinks:
            for family in (socket.AF_INET, socket.AF_INET6):
                request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (TCP_INFO - 1), ALL_STATES)
                netlink.send(struct.pack("=IHHII", HEADER + len(request), BY_FAMILY, DUMP, 0, 0) + request)
                yield from _receive(netlink, between_nodes)


def _any_connection() -> bool:
    """Return whether this network namespace has a TCP socket; a tenth of the cost of listing its connections."""
    try:
        with open("/proc/net/sockstat", "rb") as ipv4, open("/proc/net/sockstat6", "rb") as ipv6:  # noqa: PTH123  # a Path for each would be slower
            return b"TCP: inuse 0 " not in ipv4.read() or b"TCP6: inuse 0\n" not in ipv6.read()
    except OSError:
        return True


def _receive(netlink: socket.socket, between_nodes: bool) -> Iterator[tuple[int, Traffic]]:
    while True:
        data = netlink.recv(1 << 16)
        while len(data) >= HEADER:
            length, kind = struct.unpack_from("=IH", data)
            if kind == ERROR:
                raise OSError("the kernel refused to list the connections")
            if kind == DONE:
                return
            message = data[HEADER:length]
            if not between_nodes or message[SOURCE] != message[TARGET]:
                yield from _connection(message)
            data = data[(length + 3) & ~3 :]


def _connection(message: bytes) -> Iterator[tuple[int, Traffic]]:
    (inode,) = struct.unpack_from("=I", message, INODE_AT)
    rest = message[MESSAGE:]
    while inode and len(rest) >= 4:
        length, kind = struct.unpack_from("=HH", rest)
        if kind == TCP_INFO and length >= 4 + ACKED_AT + 16:
            yield inode, struct.unpack_from("=QQ", rest, 4 + ACKED_AT)
        if length < 4:
            return
        rest = rest[(length + 3) & ~3 :]
