"""Control groups of the second version: one tree for all resources.

A group either has processes or hands resources on to groups inside it, never both. Root makes its groups at the top;
others need a group that was handed to them, and step aside in it, into a group beside those of the nodes.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from trainoff.clusters.lab.cgroups import (
    OURS,
    Usage,
    folders,
    make_group,
    pids_below,
    pids_in,
    quota_of,
    remove_tree,
    values_in,
)

NEEDED = "+cpu +memory"
ASIDE = "trainoff-aside"


def own_group(root: Path, proc: Path = Path("/proc/self/cgroup")) -> Path:
    """The group that this process is in, or was before it stepped aside."""
    lines = (line.split(":", 2) for line in proc.read_text().splitlines())
    own = next((root / path.lstrip("/") for number, _, path in lines if number == "0"), root)
    return own.parent if own.name == ASIDE else own


class V2:
    """Groups below the top of the tree, or below the group that was handed to this user."""

    version = "v2"

    def __init__(self, place: Path) -> None:
        self.place = place

    @staticmethod
    def found(root: Path, own: Path | None = None) -> V2:
        """Groups in a place where they have cpu and memory to give: at the top, or else in our own group."""
        for parent in dict.fromkeys((root, own or own_group(root))):
            try:
                if not os.access(parent, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                _hand_on(parent)
            except OSError as error:
                refused = error
                continue
            return V2(parent / OURS)
        raise refused

    def make(self, lab: str, node: str) -> GroupV2:
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

    def node(self, lab: str, node: str) -> GroupV2:
        return GroupV2(self.place / lab / node)

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


class GroupV2:
    """A node's group."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def doors(self) -> Sequence[Path]:
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
