"""What tensorflowonspark runs on an executor: it starts the TensorFlow process there, and sees to its end.

A process of its own, because TensorFlow can join a cluster only once, right after it was started, and Spark uses its
Python processes again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trainoff
from trainoff.clusters.local import LOG_TAIL
from trainoff.engines.shared.control_channel import Number
from trainoff.engines.shared.storage import Storage
from trainoff.engines.tf_cluster.coordinator import Assignment
from trainoff.engines.tf_on_spark.roll import Ended, call

PROGRAM = "trainoff.engines.tf_on_spark.node"
POLL_S = 0.05


@dataclass(frozen=True)
class Orders:
    """What every TensorFlow process of a cluster is given. The addresses of all are added on the executor."""

    assignment: Assignment
    roll: Number
    servers: int  # how many of those that Spark calls parameter servers are; the one after them coordinates
    storage: Storage | None  # from which every process reads the rows; else they are here, or are pushed


@dataclass(frozen=True)
class Post:
    """What one of them is given: its job and number, and where rows come from."""

    job: str
    number: int
    assignment: Assignment
    queues: tuple[Any, bytes] | None  # the address and key of the manager that has them
    storage: Storage | None

    @property
    def role(self) -> str:
        """Its name among the processes of the trial."""
        return role_of(self.job, self.number)

    @property
    def address(self) -> str:
        return self.assignment.addresses[self.job][self.number]


def role_of(job: str, number: int) -> str:
    """The name of a TensorFlow process."""
    return "tf-chief" if job == "chief" else f"tf-{job}-{number}"


def place_of(orders: Orders, context: Any) -> tuple[str, int]:
    """The job and number of the process here, by what tensorflowonspark says of it."""
    job, number = context.job_name, context.task_index
    return ("chief", 0) if (job, number) == ("ps", orders.servers) else (job, number)


def steward(given: dict[str, Orders], context: Any) -> None:
    """Run one TensorFlow process to its end, or to the driver's."""
    orders = given["orders"]
    line = call(orders.roll, role_of(*place_of(orders, context)))
    try:
        ended = watch_over(assign(orders, context), line)
    except Exception:
        ended = Ended(1, traceback.format_exc())
    with suppress(OSError):
        line.send(ended)


def watch_over(post: Post, line: Connection) -> Ended:
    """Run the process of a post; when the driver hangs up, it is ended."""
    log = Path(f"{post.role}.txt")
    with start(post, log) as process:
        while process.poll() is None:
            if line.poll(POLL_S):  # the driver says nothing; it hung up
                process.kill()
    return Ended(process.returncode, tail(log))


def assign(orders: Orders, context: Any) -> Post:
    """What the process here is to do, by what tensorflowonspark says of it."""
    spec, (job, number) = context.cluster_spec, place_of(orders, context)
    servers = spec.get("ps", [])
    addresses = {"worker": spec["worker"], "ps": servers[: orders.servers], "chief": servers[orders.servers :]}
    queues = (context.mgr.address, bytes(context.mgr._authkey)) if job == "worker" else None
    return Post(job, number, replace(orders.assignment, addresses=addresses), queues, orders.storage)


def start(post: Post, log: Path) -> subprocess.Popen[bytes]:
    """Start the process. Its standard input closes with this one, however that ends."""
    path = Path(f"{post.role}.post")
    path.touch(mode=0o600)  # it holds secrets
    path.write_bytes(pickle.dumps(post))
    here = str(Path(trainoff.__file__).parent.parent)  # where Spark may have put it
    python_path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    with log.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(path)],
            env={**os.environ, "TRAINOFF_ROLE": post.role, "PYTHONPATH": python_path},
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )


def tail(log: Path) -> str:
    """The end of what the process has said."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:])
