"""Supervises a lab that was started by hand: `python -m trainoff.runner.lab.supervisor ABOUT SPECS`, until it is ended.

Of its two processes the outer one owns the control groups, and the inner one, process 1 where the lab's own processes
live, owns the network. When either ends, however it does, so does everything on the nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from trainoff.clusters import namespaces
from trainoff.clusters.lab.register import Ground, folder
from trainoff.clusters.local import die_with_parent
from trainoff.errors import TrainoffError
from trainoff.runner.lab.nodes import Lab
from trainoff.study.machines import NodeSpec

UP = "up"
REAP_S = 1.0


def main() -> int:
    """Say `up` when the lab is, or what stood in the way; then wait for the sign to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    specs = [NodeSpec(**spec) for spec in json.loads(sys.argv[2])]
    ground = Ground(specs)
    place = folder() / ground.plan.name  # removed with the lab, by whomever
    place.mkdir(mode=0o700, parents=True)
    try:
        return _keep(ground, sys.argv[1], place)
    finally:
        ground.close()


def _keep(ground: Ground, about: str, place: Path) -> int:
    namespaces.unshare(network=True, lab=True)
    ready, told = os.pipe()
    inner = os.fork()
    if inner == 0:
        os.close(ready)  # so that it fails to speak if nobody listens any more
        _be_inner(ground, place, told)
    os.close(told)
    try:
        with os.fdopen(ready) as word:
            said = word.readline().strip()
        if said != UP:
            print(said, flush=True)
            return 1
        for number, spec in enumerate(ground.plan.specs):
            ground.plan.group(number).set_cores(spec.cores)
        ground.announce(about, os.getpid(), place)
        print(UP, flush=True)
        os.waitpid(inner, 0)
        inner = 0
    finally:
        if inner:
            os.kill(inner, signal.SIGKILL)
            os.waitpid(inner, 0)
    return 0


def _be_inner(ground: Ground, place: Path, told: int) -> None:
    """Make the network, then only reap."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        namespaces.settle(network=True)
        _lab = Lab(ground.plan, place)  # its descriptors keep the networks
        os.write(told, f"{UP}\n".encode())
        os.close(told)
    except (TrainoffError, OSError) as error:
        os.write(told, f"{error}\n".encode())
        os._exit(1)
    while True:
        with contextlib.suppress(ChildProcessError):
            os.wait()
        time.sleep(REAP_S)  # nobody is on the nodes


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrainoffError as error:
        print(error, flush=True)
        sys.exit(1)
