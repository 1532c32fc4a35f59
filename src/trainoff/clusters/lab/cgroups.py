"""Control groups: what share of the CPUs and how much memory the processes of a node may use, and what they used.

Both versions of them: most machines mount the second, older ones and some clouds the first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainoff.errors import TrainoffError

ROOT = Path("/sys/fs/cgroup")
OURS = "trainoff"  # the group of all labs
PERIOD_US = 20_000  # of a quota; short, so that a slow node is slow all the time and not fast now and then
LEAST_QUOTA_US = 1_000  # the kernel's own bound
LEAVE_S = 5.0  # how long the killed may take to be gone


@dataclass(frozen=True)
class Usage:
    """What the processes of a node have used so far, by the kernel's own counters."""

    cpu_s: float
    throttled_s: float  # in which they would have run, had they not used up their share
    memory_bytes: int  # now, without what is only cached
    peak_memory_bytes: int
    oom_kills: int


class Cgroup(Protocol):
    """The control group of one node."""

    @property
    def process_files(self) -> Sequence[Path]:
        """The files into which a process writes its number to become one of the node's."""

    def set_cores(self, cores: float | None) -> None:
        """Run its processes on so many cores' worth of time; None: without a limit."""

    @property
    def throttled(self) -> bool:
        """Whether there is a limit to its time just now."""

    def set_memory(self, limit: int) -> None:
        """Let the kernel kill a process of it when they use more bytes together."""

    def usage(self) -> Usage: ...

    def pids(self) -> list[int]:
        """Its processes, children included."""


class Cgroups(Protocol):
    """Makes groups: of labs, and of their nodes."""

    version: str
    place: Path  # where they are

    def make(self, lab: str, node: str) -> Cgroup:
        """Make the group of a node."""

    def node(self, lab: str, node: str) -> Cgroup:
        """The group of a node that somebody has made."""

    def labs(self) -> list[str]:
        """The labs that have groups, whoever made them and whether or not he lives."""

    def pids(self, lab: str) -> list[int]:
        """The processes in all groups of a lab."""

    def remove(self, lab: str) -> None:
        """Remove all groups of a lab. Its processes must be gone, or going."""


def quota_of(cores: float, period_us: int = PERIOD_US) -> tuple[int, int]:
    """So many microseconds in a period are so many cores; the period is longer where the kernel would refuse."""
    quota = cores * period_us
    if quota < LEAST_QUOTA_US:
        period_us = min(1_000_000, round(LEAST_QUOTA_US / cores))
        quota = max(LEAST_QUOTA_US, cores * period_us)
    return round(quota), period_us


def values_in(path: Path) -> dict[str, int]:
    """A file of lines `name number`."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def make_group(path: Path) -> None:
    """Make a group, unless it is there; somebody else may just be removing the one around it."""
    with contextlib.suppress(FileNotFoundError):
        path.mkdir(parents=True, exist_ok=True)
    path.mkdir(parents=True, exist_ok=True)


def remove_group(path: Path) -> None:
    """Remove an empty group; waits for processes that have been killed to be gone."""
    deadline = time.monotonic() + LEAVE_S
    while True:
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def remove_tree(path: Path) -> None:
    """Remove a group and the groups in it, the innermost first."""
    with contextlib.suppress(FileNotFoundError):
        for inner in sorted(each for each in path.iterdir() if each.is_dir()):
            remove_tree(inner)
        remove_group(path)


def find_groups(root: Path = ROOT) -> Cgroups:
    """The groups of this machine, of whichever version; one sentence if a lab cannot have any."""

    try:
        if (root / "cgroup.controllers").exists():
            return CgroupsV2.found(root)
        if (root / "cpu").is_dir() and (root / "memory").is_dir():
            return CgroupsV1(root)
    except OSError as error:
        raise TrainoffError(refused(error)) from error
    raise TrainoffError(f"the lab needs control groups with cpu and memory, and {root} has none")


def groups_at(version: str, place: Path) -> Cgroups:
    """The groups that another process has found."""

    return CgroupsV1(place) if version == "v1" else CgroupsV2(place)


def refused(error: OSError) -> str:
    """Why a lab may not have groups, and the way out."""
    way = (
        "in a container, mount /sys/fs/cgroup for writing, or run trainoff outside of it"
        if os.geteuid() == 0
        else "run it as root, or where systemd hands groups to its users: "
        "systemd-run --user --scope -p Delegate=yes trainoff run ..."
    )
    return f"the lab may not make control groups here ({error.strerror or error}); {way}"


def pids_in(file: Path) -> list[int]:
    """The processes that a group lists; one that this process cannot see is listed as 0."""
    return [int(pid) for pid in file.read_text().split() if pid != "0"]


def pids_below(path: Path) -> list[int]:
    """The processes in a group and in the groups in it."""
    return sorted({pid for file in path.glob("**/cgroup.procs") for pid in pids_in(file)})


def folders(path: Path) -> Iterator[str]:
    """The names of the groups in a group."""
    with contextlib.suppress(FileNotFoundError):
        yield from sorted(each.name for each in path.iterdir() if each.is_dir())


KINDS = ("cpu", "cpuacct", "memory")


class CgroupsV1:
    """Groups in the trees of `cpu`, `cpuacct` and `memory`."""

    version = "v1"

    def __init__(self, root: Path) -> None:
        self.place = root
        self._trees = [root / kind / OURS for kind in KINDS]

    def make(self, lab: str, node: str) -> CgroupV1:
        for tree in self._trees:
            make_group(tree / lab / node)
        return self.node(lab, node)

    def node(self, lab: str, node: str) -> CgroupV1:
        return CgroupV1(*(tree / lab / node for tree in self._trees))

    def labs(self) -> list[str]:
        return sorted({name for tree in self._trees for name in folders(tree)})

    def pids(self, lab: str) -> list[int]:
        return sorted({pid for tree in self._trees for pid in pids_below(tree / lab)})

    def remove(self, lab: str) -> None:
        for tree in self._trees:
            remove_tree(tree / lab)
            with contextlib.suppress(OSError):  # other labs are in it, or one is just being made
                tree.rmdir()


class CgroupV1:
    """A node's group in each of the trees."""

    def __init__(self, cpu: Path, account: Path, memory: Path) -> None:
        self._cpu, self._account, self._memory = cpu, account, memory

    @property
    def process_files(self) -> Sequence[Path]:
        return [path / "cgroup.procs" for path in (self._cpu, self._account, self._memory)]

    def set_cores(self, cores: float | None) -> None:
        quota, period = quota_of(cores) if cores else (-1, PERIOD_US)
        (self._cpu / "cpu.cfs_period_us").write_text(str(period))
        (self._cpu / "cpu.cfs_quota_us").write_text(str(quota))

    @property
    def throttled(self) -> bool:
        return int((self._cpu / "cpu.cfs_quota_us").read_text()) > 0

    def set_memory(self, limit: int) -> None:
        (self._memory / "memory.limit_in_bytes").write_text(str(limit))
        with contextlib.suppress(OSError):  # not every kernel counts swap
            (self._memory / "memory.memsw.limit_in_bytes").write_text(str(limit))

    def usage(self) -> Usage:
        throttled = values_in(self._cpu / "cpu.stat").get("throttled_time", 0)
        return Usage(
            cpu_s=int((self._account / "cpuacct.usage").read_text()) / 1e9,
            throttled_s=throttled / 1e9,
            memory_bytes=values_in(self._memory / "memory.stat").get("rss", 0),
            peak_memory_bytes=int((self._memory / "memory.max_usage_in_bytes").read_text()),
            oom_kills=values_in(self._memory / "memory.oom_control").get("oom_kill", 0),
        )

    def pids(self) -> list[int]:
        return pids_in(self._cpu / "cgroup.procs")


NEEDED = "+cpu +memory"
ASIDE = "trainoff-aside"


def own_group(root: Path, proc: Path = Path("/proc/self/cgroup")) -> Path:
    """The group that this process is in, or was before it stepped aside."""
    lines = (line.split(":", 2) for line in proc.read_text().splitlines())
    own = next((root / path.lstrip("/") for number, _, path in lines if number == "0"), root)
    return own.parent if own.name == ASIDE else own


class CgroupsV2:
    """Groups below the top of the tree, or below the group that was handed to this user."""

    version = "v2"

    def __init__(self, place: Path) -> None:
        self.place = place

    @staticmethod
    def found(root: Path, own: Path | None = None) -> CgroupsV2:
        """Groups in a place where they have cpu and memory to give: at the top, or else in our own group."""
        for parent in dict.fromkeys((root, own or own_group(root))):
            try:
                if not os.access(parent, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                _hand_on(parent)
            except OSError as error:
                refused = error
                continue
            return CgroupsV2(parent / OURS)
        raise refused

    def make(self, lab: str, node: str) -> CgroupV2:
        try:
            self._make(lab, node)
        except OSError:  # another lab that went has taken the place of all with it: once more
            self._make(lab, node)
        return self.node(lab, node)

    def _make(self, lab: str, node: str) -> None:
        for parent in (self.place, self.place / lab):
            make_group(parent)
            (parent / "cgroup.subtree_control").write_text(NEEDED)
        make_group(self.place / lab / node)

    def node(self, lab: str, node: str) -> CgroupV2:
        return CgroupV2(self.place / lab / node)

    def labs(self) -> list[str]:
        return list(folders(self.place))

    def pids(self, lab: str) -> list[int]:
        return pids_below(self.place / lab)

    def remove(self, lab: str) -> None:
        remove_tree(self.place / lab)
        with contextlib.suppress(OSError):  # other labs are in it, or one is just being made
            self.place.rmdir()


def _hand_on(parent: Path) -> None:
    """Let a group hand cpu and memory on to groups in it; its own processes step aside if they are in the way."""
    control = parent / "cgroup.subtree_control"
    if {"cpu", "memory"} <= set(control.read_text().split()):
        return
    try:
        control.write_text(NEEDED)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        (parent / ASIDE).mkdir(exist_ok=True)
        for pid in (parent / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                (parent / ASIDE / "cgroup.procs").write_text(pid)
        control.write_text(NEEDED)


class CgroupV2:
    """A node's group."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def process_files(self) -> Sequence[Path]:
        return [self._path / "cgroup.procs"]

    def set_cores(self, cores: float | None) -> None:
        self._write("cpu.max", "{} {}".format(*quota_of(cores)) if cores else "max")

    @property
    def throttled(self) -> bool:
        return not (self._path / "cpu.max").read_text().startswith("max")

    def set_memory(self, limit: int) -> None:
        self._write("memory.max", str(limit))
        with contextlib.suppress(OSError):  # not every kernel counts swap
            self._write("memory.swap.max", "0")

    def _write(self, name: str, value: str) -> None:
        (self._path / name).write_text(value)

    def usage(self) -> Usage:
        cpu, memory = values_in(self._path / "cpu.stat"), values_in(self._path / "memory.stat")
        return Usage(
            cpu_s=cpu.get("usage_usec", 0) / 1e6,
            throttled_s=cpu.get("throttled_usec", 0) / 1e6,
            memory_bytes=memory.get("anon", 0),
            peak_memory_bytes=self._peak(),
            oom_kills=values_in(self._path / "memory.events").get("oom_kill", 0),
        )

    def _peak(self) -> int:
        """The most it ever used; older kernels know only what it uses now."""
        peak = self._path / "memory.peak"
        return int((peak if peak.exists() else self._path / "memory.current").read_text())

    def pids(self) -> list[int]:
        return pids_in(self._path / "cgroup.procs")
