"""Control groups of the first version: a tree for each kind of resource."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from trainoff.clusters.lab.cgroups import (
    OURS,
    PERIOD_US,
    Usage,
    folders,
    make_group,
    pids_below,
    pids_in,
    quota_of,
    remove_tree,
    values_in,
)

KINDS = ("cpu", "cpuacct", "memory")


class V1:
    """Groups in the trees of `cpu`, `cpuacct` and `memory`."""

    version = "v1"

    def __init__(self, root: Path) -> None:
        self.place = root
        self._trees = [root / kind / OURS for kind in KINDS]

    def make(self, lab: str, node: str) -> GroupV1:
        for tree in self._trees:
            make_group(tree / lab / node)
        return self.node(lab, node)

    def node(self, lab: str, node: str) -> GroupV1:
        return GroupV1(*(tree / lab / node for tree in self._trees))

    def labs(self) -> list[str]:
        return sorted({name for tree in self._trees for name in folders(tree)})

    def pids(self, lab: str) -> list[int]:
        return sorted({pid for tree in self._trees for pid in pids_below(tree / lab)})

    def remove(self, lab: str) -> None:
        for tree in self._trees:
            remove_tree(tree / lab)
            with contextlib.suppress(OSError):  # other labs are in it, or one is just being made
                tree.rmdir()


class GroupV1:
    """A node's group in each of the trees."""

    def __init__(self, cpu: Path, account: Path, memory: Path) -> None:
        self._cpu, self._account, self._memory = cpu, account, memory

    @property
    def doors(self) -> Sequence[Path]:
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
