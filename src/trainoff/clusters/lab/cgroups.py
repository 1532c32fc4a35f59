"""Control groups: limits of a node's CPU time and memory, and what its processes have used.

Both versions are supported: most machines mount version 2, older ones and some clouds version 1.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainoff.errors import TrainoffError

ROOT = Path("/sys/fs/cgroup")
OURS = "trainoff"  # the group of all labs
PERIOD_US = 20_000  # of a quota; short, so that a slow node is slow all the time
LEAST_QUOTA_US = 1_000  # the kernel's minimum
LEAVE_S = 5.0  # how long killed processes may take to end


@dataclass(frozen=True)
class Usage:
    """What the processes of a node have used so far, by the kernel's counters."""

    cpu_s: float
    throttled_s: float  # in which they could have run, had the quota not been used up
    memory_bytes: int  # now, without the page cache
    peak_memory_bytes: int
    oom_kills: int


def quota_of(cores: float, period_us: int = PERIOD_US) -> tuple[int, int]:
    """Return the quota and the period for a number of cores, with a longer period where the kernel requires it."""
    quota = cores * period_us
    if quota < LEAST_QUOTA_US:
        period_us = min(1_000_000, round(LEAST_QUOTA_US / cores))
        quota = max(LEAST_QUOTA_US, cores * period_us)
    return round(quota), period_us


def read_values(path: Path) -> dict[str, int]:
    """Read a file with a name and a number on each line."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def make_group(path: Path) -> None:
    """Make a group unless it exists, also if another process is just removing its parent."""
    with contextlib.suppress(FileNotFoundError):
        path.mkdir(parents=True, exist_ok=True)
    path.mkdir(parents=True, exist_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a group and the groups in it, waiting for killed processes to end."""
    with contextlib.suppress(FileNotFoundError):
        for inner in sorted(each for each in path.iterdir() if each.is_dir()):
            remove_tree(inner)
        deadline = time.monotonic() + LEAVE_S
        while True:
            try:
                return path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)


def find_groups(root: Path = ROOT) -> Cgroups:
    """Return this machine's groups, of either version; raise TrainoffError if a lab cannot have any."""
    try:
        if (root / "cgroup.controllers").exists():
            return CgroupsV2.found(root)
        if (root / "cpu").is_dir() and (root / "memory").is_dir():
            return CgroupsV1(root)
    except OSError as error:
        raise TrainoffError(permission_error(error)) from error
    raise TrainoffError(f"the lab needs control groups with cpu and memory, and {root} has none")


def groups_at(version: str, place: Path) -> Cgroups:
    """Return the groups that another process has found."""
    return CgroupsV1(place) if version == "v1" else CgroupsV2(place)


def permission_error(error: OSError) -> str:
    """Return why a lab may not make groups, and what to do."""
    remedy = (
        "in a container, mount /sys/fs/cgroup for writing, or run trainoff outside of it"
        if os.geteuid() == 0
        else "run it as root, or where systemd hands groups to its users: "
        "systemd-run --user --scope -p Delegate=yes trainoff run ..."
    )
    return f"the lab may not make control groups here ({error.strerror or error}); {remedy}"


def pids_in(file: Path) -> list[int]:
    """Return the processes that a group lists; one that this process cannot see is listed as 0."""
    return [int(pid) for pid in file.read_text().split() if pid != "0"]


class Cgroups:
    """The groups of all labs and their nodes, in one tree per controller (version 1) or in one tree (version 2)."""

    version: ClassVar[str]

    def __init__(self, place: Path, trees: Sequence[Path]) -> None:
        self.place, self._trees = place, trees

    def make(self, lab: str, node: str) -> Cgroup:
        """Make the group of a node."""
        for tree in self._trees:
            make_group(tree / lab / node)
        return self.node(lab, node)

    def node(self, lab: str, node: str) -> Cgroup:
        """Return the group of a node, which exists."""
        paths = [tree / lab / node for tree in self._trees]
        return CgroupV1(*paths) if self.version == "v1" else CgroupV2(*paths)

    def labs(self) -> list[str]:
        """Return the labs that have groups, whether or not their owners live."""
        names: set[str] = set()
        for tree in self._trees:
            with contextlib.suppress(FileNotFoundError):
                names |= {each.name for each in tree.iterdir() if each.is_dir()}
        return sorted(names)

    def pids(self, lab: str) -> list[int]:
        """Return the processes in all groups of a lab."""
        files = (file for tree in self._trees for file in (tree / lab).glob("**/cgroup.procs"))
        return sorted({pid for file in files for pid in pids_in(file)})

    def remove(self, lab: str) -> None:
        """Remove all groups of a lab, whose processes must be gone or killed."""
        for tree in self._trees:
            remove_tree(tree / lab)
            with contextlib.suppress(OSError):  # it has other labs, or one is just being made
                tree.rmdir()


class CgroupsV1(Cgroups):
    """Groups in the trees of `cpu`, `cpuacct` and `memory`."""

    version = "v1"

    def __init__(self, root: Path) -> None:
        super().__init__(root, [root / name / OURS for name in ("cpu", "cpuacct", "memory")])


class CgroupV1:
    """A node's group in each of the trees; the methods are those of CgroupV2."""

    def __init__(self, cpu: Path, cpuacct: Path, memory: Path) -> None:
        self._cpu, self._cpuacct, self._memory = cpu, cpuacct, memory

    @property
    def process_files(self) -> Sequence[Path]:
        return [path / "cgroup.procs" for path in (self._cpu, self._cpuacct, self._memory)]

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
        return Usage(
            cpu_s=int((self._cpuacct / "cpuacct.usage").read_text()) / 1e9,
            throttled_s=read_values(self._cpu / "cpu.stat").get("throttled_time", 0) / 1e9,
            memory_bytes=read_values(self._memory / "memory.stat").get("rss", 0),
            peak_memory_bytes=int((self._memory / "memory.max_usage_in_bytes").read_text()),
            oom_kills=read_values(self._memory / "memory.oom_control").get("oom_kill", 0),
        )

    def pids(self) -> list[int]:
        return pids_in(self._cpu / "cgroup.procs")


NEEDED = "+cpu +memory"
ASIDE = "trainoff-aside"


def current_group(root: Path, proc: Path = Path("/proc/self/cgroup")) -> Path:
    """Return this process's group, or its parent if the process was moved aside."""
    lines = (line.split(":", 2) for line in proc.read_text().splitlines())
    group = next((root / path.lstrip("/") for hierarchy, _, path in lines if hierarchy == "0"), root)
    return group.parent if group.name == ASIDE else group


class CgroupsV2(Cgroups):
    """Groups below the root of the tree, or below the group that was delegated to this user."""

    version = "v2"

    def __init__(self, place: Path) -> None:
        super().__init__(place, [place])

    @staticmethod
    def found(root: Path, group: Path | None = None) -> CgroupsV2:
        """Return groups in a place that can delegate cpu and memory: the root, or else this process's group."""
        for parent in dict.fromkeys((root, group or current_group(root))):
            try:
                if not os.access(parent, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                _delegate(parent)
            except OSError as error:
                refused = error
                continue
            return CgroupsV2(parent / OURS)
        raise refused

    def make(self, lab: str, node: str) -> Cgroup:
        try:
            self._delegate_to(lab)
        except OSError:  # another lab that ended has removed the group of all labs
            self._delegate_to(lab)
        return super().make(lab, node)

    def _delegate_to(self, lab: str) -> None:
        for parent in (self.place, self.place / lab):
            make_group(parent)
            (parent / "cgroup.subtree_control").write_text(NEEDED)


def _delegate(parent: Path) -> None:
    """Let a group delegate cpu and memory to its children, for which its own processes may have to be moved."""
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
            with contextlib.suppress(ProcessLookupError):  # it has ended
                (parent / ASIDE / "cgroup.procs").write_text(pid)
        control.write_text(NEEDED)


class CgroupV2:
    """A node's group."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def process_files(self) -> Sequence[Path]:
        """The files into which a process writes its PID to join the node."""
        return [self._path / "cgroup.procs"]

    def set_cores(self, cores: float | None) -> None:
        """Limit the CPU time to a number of cores; None removes the limit."""
        self._write("cpu.max", "{} {}".format(*quota_of(cores)) if cores else "max")

    @property
    def throttled(self) -> bool:
        """Whether the CPU time is limited now."""
        return not (self._path / "cpu.max").read_text().startswith("max")

    def set_memory(self, limit: int) -> None:
        """Let the kernel kill a process when all together use more bytes."""
        self._write("memory.max", str(limit))
        with contextlib.suppress(OSError):  # not every kernel counts swap
            self._write("memory.swap.max", "0")

    def _write(self, name: str, value: str) -> None:
        (self._path / name).write_text(value)

    def usage(self) -> Usage:
        cpu, memory = read_values(self._path / "cpu.stat"), read_values(self._path / "memory.stat")
        peak = self._path / "memory.peak"
        if not peak.exists():  # older kernels know only the current use
            peak = self._path / "memory.current"
        return Usage(
            cpu_s=cpu.get("usage_usec", 0) / 1e6,
            throttled_s=cpu.get("throttled_usec", 0) / 1e6,
            memory_bytes=memory.get("anon", 0),
            peak_memory_bytes=int(peak.read_text()),
            oom_kills=read_values(self._path / "memory.events").get("oom_kill", 0),
        )

    def pids(self) -> list[int]:
        """Return the node's processes."""
        return pids_in(self._path / "cgroup.procs")


Cgroup = CgroupV1 | CgroupV2
