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


class Group(Protocol):
    """The control group of one node."""

    @property
    def doors(self) -> Sequence[Path]:
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


class Groups(Protocol):
    """Makes groups: of labs, and of their nodes."""

    version: str
    place: Path  # where they are

    def make(self, lab: str, node: str) -> Group:
        """Make the group of a node."""

    def node(self, lab: str, node: str) -> Group:
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


def find_groups(root: Path = ROOT) -> Groups:
    """The groups of this machine, of whichever version; one sentence if a lab cannot have any."""
    from trainoff.clusters.lab.groups_v1 import V1
    from trainoff.clusters.lab.groups_v2 import V2

    try:
        if (root / "cgroup.controllers").exists():
            return V2.found(root)
        if (root / "cpu").is_dir() and (root / "memory").is_dir():
            return V1(root)
    except OSError as error:
        raise TrainoffError(refused(error)) from error
    raise TrainoffError(f"the lab needs control groups with cpu and memory, and {root} has none")


def groups_at(version: str, place: Path) -> Groups:
    """The groups that another process has found."""
    from trainoff.clusters.lab.groups_v1 import V1
    from trainoff.clusters.lab.groups_v2 import V2

    return V1(place) if version == "v1" else V2(place)


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
