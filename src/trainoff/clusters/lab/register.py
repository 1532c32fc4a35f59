"""The labs of this machine: the register of running ones, their control groups, and what a machine needs for a lab."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from trainoff.clusters.lab.cgroups import Cgroups, find_groups, permission_error
from trainoff.clusters.lab.cluster import LabPlan
from trainoff.errors import TrainoffError
from trainoff.files import atomic_write
from trainoff.study.machines import GIB, NodeSpec

FILE = "{name}.json"
PLAYGROUND = "lab"  # what a lab that was started by hand is called where it is told


@dataclass(frozen=True)
class LabEntry:
    """A lab: its plan, what it is for, the process on this machine that keeps it, and its folder."""

    plan: LabPlan
    about: str
    keeper: int
    folder: str

    @property
    def name(self) -> str:
        return self.plan.name


def folder() -> Path:
    """Where the files are: gone after a restart, as labs are. TRAINOFF_RUNTIME names another place."""
    if given := os.environ.get("TRAINOFF_RUNTIME"):
        return Path(given)
    own = os.environ.get("XDG_RUNTIME_DIR")
    base = Path("/run") if os.geteuid() == 0 else Path(own) if own else Path(tempfile.gettempdir())
    return base / ("trainoff" if base != Path(tempfile.gettempdir()) else f"trainoff-{os.getuid()}")


def new_name(number: int = 0) -> str:
    """A name for a lab of this process, by which others can tell whether its owner lives."""
    return f"{os.getpid()}-{_born(os.getpid())}-{number}"


def owned(name: str) -> bool:
    """Whether the owner of a lab lives."""
    pid, _, rest = name.partition("-")
    with contextlib.suppress(ValueError, OSError):
        return _born(int(pid)) == int(rest.partition("-")[0])
    return False


def _born(pid: int) -> int:
    """When a process began, in ticks since the machine did: what no change of its clock touches."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def announce(entry: LabEntry) -> None:
    """Write a lab down."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    content = json.dumps({**asdict(entry), "plan": asdict(entry.plan)})
    atomic_write(folder() / FILE.format(name=entry.name), content)


def forget(name: str) -> None:
    """Strike a lab off."""
    (folder() / FILE.format(name=name)).unlink(missing_ok=True)
    shutil.rmtree(folder() / name, ignore_errors=True)  # the keeper's
    with contextlib.suppress(OSError):  # others are in it, or it never was
        folder().rmdir()


def labs() -> Iterator[LabEntry]:
    """The labs that are up."""
    for path in sorted(folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(path.read_text())
            if owned(path.stem):
                yield LabEntry(LabPlan.from_json(told["plan"]), told["about"], told["keeper"], told["folder"])


def sweep(groups: Cgroups) -> list[str]:
    """Remove what is left of labs whose owners are gone; returns their names."""
    gone = [name for name in groups.labs() if not owned(name)]
    for name in gone:
        with contextlib.suppress(OSError):  # another sweeps it, too, or it will not go yet: then the next one does
            kill_all(groups, name)
            groups.remove(name)
    for path in folder().glob("*-*-*"):
        if not owned(path.stem):
            forget(path.stem)
    return gone


def kill_all(groups: Cgroups, name: str) -> None:
    """Kill every process of a lab."""
    for pid in groups.pids(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


_numbers = itertools.count()


class LabCgroups:
    """The control groups of one lab, from their making to their removal. Leftovers of the dead are removed first."""

    def __init__(self, specs: Sequence[NodeSpec]) -> None:
        self._groups = find_groups()
        sweep(self._groups)
        self.plan = LabPlan(new_name(next(_numbers)), self._groups.version, str(self._groups.place), specs)
        try:
            self._make(specs)
        except OSError as error:
            self.close()
            raise TrainoffError(
                f"the control groups of a lab cannot be made ({error}); see: trainoff doctor"
            ) from error

    def _make(self, specs: Sequence[NodeSpec]) -> None:
        for number, spec in enumerate(specs):
            group = self._groups.make(self.plan.name, f"node-{number}")
            if spec.memory_bytes:
                group.set_memory(spec.memory_bytes)

    def announce(self, about: str, keeper: int, folder: Path) -> None:
        """Let others find the lab, once its network has been made by the keeper and written down in the folder."""
        announce(LabEntry(LabPlan.read(folder), about, keeper, str(folder)))

    def close(self) -> None:
        """Remove the groups, when their processes have been killed; what will not go yet, the next lab removes."""
        forget(self.plan.name)
        with contextlib.suppress(OSError):
            kill_all(self._groups, self.plan.name)
            self._groups.remove(self.plan.name)


PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
TRYING = 10**6  # the number of a lab that is only tried
SLACK = 1.001  # for sums of fractions


@cache
def missing() -> str | None:
    """What this machine lacks to be a lab, in one sentence; None if it can be one."""
    if sys.platform != "linux":
        return f"the lab is made of Linux's namespaces and control groups; this is {sys.platform}"
    for program, package in PROGRAMS.items():
        if not shutil.which(program):
            return f"the lab needs `{program}`; apt-get install {package}"
    try:
        groups = find_groups()
        groups.make(name := new_name(TRYING), "node-0").set_cores(1.0)
        groups.remove(name)
    except TrainoffError as error:
        return str(error)
    except OSError as error:
        return permission_error(error)
    return None


@cache
def no_latency() -> str | None:
    """Why packets cannot be delayed here; None if they can."""
    alone = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    delay = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    tried = subprocess.run([*alone, *delay], capture_output=True)
    if tried.returncode == 0:
        return None
    return "latency_ms needs the kernel's netem, which this machine does not have; leave it out"


def refuses(specs: Sequence[NodeSpec], cpus: int) -> str | None:
    """Why these nodes cannot be emulated here, or None."""
    cores = sum(spec.cores for spec in specs)
    if cores > cpus * SLACK:
        return (
            f"{len(specs)} nodes with {cores:.3g} cores together are more than the {cpus} of this machine; "
            f"take at most {cpus / len(specs):.3g} for each, or fewer nodes"
        )
    return no_latency() if any(spec.latency_ms for spec in specs) else None


def too_much_memory(specs: Sequence[NodeSpec], total: int) -> str | None:
    """A warning if the nodes' memory together is more than the machine has, and so may not be there when needed."""
    asked = sum(spec.memory_bytes or 0 for spec in specs)
    if asked <= total:
        return None
    return f"{len(specs)} nodes with {asked / GIB:.3g} GB together; this machine has {total / GIB:.3g}"
