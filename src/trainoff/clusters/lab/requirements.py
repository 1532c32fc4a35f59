"""Whether this machine can be a lab: what is missing, and whether the nodes that are asked for fit on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

from trainoff.clusters.lab.cgroups import find_groups, refused
from trainoff.clusters.lab.register import new_name
from trainoff.errors import TrainoffError
from trainoff.study.machines import GIB, NodeSpec

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
        return refused(error)
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
