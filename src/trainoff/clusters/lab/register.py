"""The labs of this machine: the register of running labs, their control groups, and what a lab requires."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from trainoff.clusters.lab.cgroups import Cgroups, find_groups, permission_error
from trainoff.clusters.lab.cluster import LabPlan
from trainoff.errors import TrainoffError
from trainoff.files import atomic_write
from trainoff.study.machines import GIB, NodeSpec

MANUAL = "lab"  # the `about` of a lab that was started by `trainoff lab up`


@dataclass(frozen=True)
class LabEntry:
    """A running lab: its plan, what it is for, the PID of its supervisor, and its folder."""

    plan: LabPlan
    about: str
    supervisor: int
    folder: str

    @property
    def name(self) -> str:
        return self.plan.name


def folder() -> Path:
    """Return the register's folder, which a restart removes, as it ends all labs."""
    if given := os.environ.get("TRAINOFF_RUNTIME"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run/trainoff")
    runtime, shared = os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()
    return Path(runtime, "trainoff") if runtime and runtime != shared else Path(shared, f"trainoff-{os.getuid()}")


def new_name(number: int = 0) -> str:
    """Return a name for a lab of this process, which tells other processes whether its owner lives."""
    return f"{os.getpid()}-{_start_time(os.getpid())}-{number}"


def owned(name: str) -> bool:
    """Return whether the owner of a lab lives."""
    pid, _, rest = name.partition("-")
    with contextlib.suppress(ValueError, OSError):
        return _start_time(int(pid)) == int(rest.partition("-")[0])
    return False


def _start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def forget(name: str) -> None:
    """Remove a lab from the register."""
    (folder() / f"{name}.json").unlink(missing_ok=True)
    shutil.rmtree(folder() / name, ignore_errors=True)  # the supervisor's
    with contextlib.suppress(OSError):  # it has other labs, or does not exist
        folder().rmdir()


def labs() -> Iterator[LabEntry]:
    """Return the labs that are up."""
    for path in sorted(folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            entry = msgspec.json.decode(path.read_bytes(), type=LabEntry)
            if owned(path.stem):
                yield entry


def sweep(groups: Cgroups) -> list[str]:
    """Remove the leftovers of labs whose owners are gone; return their names."""
    gone = [name for name in groups.labs() if not owned(name)]
    for name in gone:
        kill_and_remove(groups, name)
    for path in folder().glob("*-*-*"):
        if not owned(path.stem):
            forget(path.stem)
    return gone


def kill_and_remove(groups: Cgroups, name: str) -> None:
    """Kill every process of a lab, and remove its groups."""
    with contextlib.suppress(OSError):  # another process removes them, too, or the processes have not ended yet
        for pid in groups.pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        groups.remove(name)


_numbers = itertools.count()


class LabCgroups:
    """The control groups of one lab. Making them first removes the leftovers of labs whose owners are gone."""

    def __init__(self, specs: Sequence[NodeSpec]) -> None:
        self._groups = find_groups()
        sweep(self._groups)
        self.plan = LabPlan(new_name(next(_numbers)), self._groups.version, str(self._groups.place), specs)
        try:
            for number, spec in enumerate(specs):
                group = self._groups.make(self.plan.name, f"node-{number}")
                if spec.memory_bytes:
                    group.set_memory(spec.memory_bytes)
        except OSError as error:
            self.close()
            reason = f"the control groups of a lab cannot be made ({error}); see: trainoff doctor"
            raise TrainoffError(reason) from error

    def announce(self, about: str, supervisor: int, place: Path) -> None:
        """Register the lab, once the supervisor has made its network and written the plan into the folder."""
        entry = LabEntry(LabPlan.read(place), about, supervisor, str(place))
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(folder() / f"{entry.plan.name}.json", msgspec.json.encode(entry))

    def close(self) -> None:
        """Kill the lab's processes and remove its groups; those that are busy yet are removed by the next lab."""
        forget(self.plan.name)
        kill_and_remove(self._groups, self.plan.name)


PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
TRIAL_NUMBER = 10**6  # of a lab that is made to see whether it can be
TOLERANCE = 1.001  # for sums of fractions


@cache
def missing() -> str | None:
    """Return what this machine lacks for a lab, or None."""
    if sys.platform != "linux":
        return f"the lab needs Linux's namespaces and control groups; this is {sys.platform}"
    for program, package in PROGRAMS.items():
        if not shutil.which(program):
            return f"the lab needs `{program}`; apt-get install {package}"
    try:
        groups = find_groups()
        groups.make(name := new_name(TRIAL_NUMBER), "node-0").set_cores(1.0)
        groups.remove(name)
    except TrainoffError as error:
        return str(error)
    except OSError as error:
        return permission_error(error)
    return None


@cache
def no_latency() -> str | None:
    """Return why packets cannot be delayed here, or None."""
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    delay = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    if subprocess.run([*unshare, *delay], capture_output=True).returncode == 0:
        return None
    return "latency_ms needs the kernel's netem, which this machine does not have; leave it out"


def refuses(specs: Sequence[NodeSpec], cpus: int) -> str | None:
    """Return why these nodes cannot be emulated here, or None."""
    cores = sum(spec.cores for spec in specs)
    if cores > cpus * TOLERANCE:
        return (
            f"{len(specs)} nodes with {cores:.3g} cores together are more than the {cpus} of this machine; "
            f"take at most {cpus / len(specs):.3g} for each, or fewer nodes"
        )
    return no_latency() if any(spec.latency_ms for spec in specs) else None


def too_much_memory(specs: Sequence[NodeSpec], total: int) -> str | None:
    """Return a warning if the nodes together have more memory than the machine."""
    needed = sum(spec.memory_bytes or 0 for spec in specs)
    if needed <= total:
        return None
    return f"{len(specs)} nodes with {needed / GIB:.3g} GB together; this machine has {total / GIB:.3g}"
