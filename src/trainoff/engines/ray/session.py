"""The driver's connection with a Ray cluster. Loaded by `open`, because it takes Ray with it."""

from __future__ import annotations

import atexit
import logging
import socket
from collections.abc import Mapping
from math import ceil
from typing import Any

import psutil
import ray
from ray._private import services
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, without types
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from trainoff.clusters.ray import stay_on_loopback
from trainoff.engines.contract import Job
from trainoff.engines.shared.shipping import pack_rows
from trainoff.errors import TrainoffError

CALL_S = 10.0  # how long an existing cluster may take to answer
GROUP_S = 120  # how long workers wait for each other


def connect(address: str) -> None:
    """Connect to a cluster on this machine."""
    if address.startswith("127.0.0.1:"):
        stay_on_loopback()
    ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, include_dashboard=False)


def connect_to(address: str) -> None:
    """Connect to a cluster of others; one sentence if there is none."""
    name, _, port = address.rpartition(":")
    try:
        socket.create_connection((name, int(port)), CALL_S).close()
        here = nodes_here(address)
        services.find_node_ids = lambda: here  # Ray looks for its processes, which a trial with its own cannot see
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, ValueError, RuntimeError) as error:
        raise TrainoffError(f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}") from error


def nodes_here(address: str) -> list[str]:
    """The nodes of a cluster that run on this machine; a driver needs one."""
    found = GcsClient(address=address).get_all_node_info(timeout=CALL_S).values()
    own = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
    here = [node.node_id.hex() for node in found if node.node_manager_address in own]
    if not here:
        raise TrainoffError(f"no node of the Ray cluster at {address} is on this machine, and a driver needs one")
    return here


def host() -> str:
    """The address at which Ray's workers can call this process."""
    return str(ray.util.get_node_ip_address())


def bytes_of(job: Job) -> int:
    """At most so many bytes are shipped."""
    return int(job.data.x_train.nbytes + job.data.y_train.nbytes)


def ship(job: Job) -> list[Any]:
    """Put the rows into Ray's store, as few bytes as they can be; every node fetches them once.

    In a list, for Ray to pass on where they are and not the rows.
    """
    return [ray.put(pack_rows(job))]


def trainer(job: Job, given: Mapping[str, Any], restarts: int) -> TorchTrainer:
    """Ray Train with one worker on every node."""
    size = ScalingConfig(
        num_workers=job.workers, resources_per_worker={"CPU": ceil(job.cores)}, placement_strategy="SPREAD"
    )
    return TorchTrainer(
        train,
        train_loop_config=dict(given),
        scaling_config=size,
        torch_config=TorchConfig(backend="gloo", timeout_s=GROUP_S),
        run_config=RunConfig(
            name="trainoff",
            storage_path=str(job.folder / "ray"),
            failure_config=FailureConfig(max_failures=restarts),
        ),
    )


def disconnect(alive: bool) -> None:
    """Let go of the cluster; if its head is gone there is nobody to take leave of."""
    atexit.unregister(ray.shutdown)
    if alive:
        ray.shutdown()


def train(given: Mapping[str, Any]) -> None:
    """Fetch the rows from Ray's store and learn from them, to the end; Ray Train has formed the process group."""
    import ray
    import torch

    from trainoff.engines.shared.shipping import unpack_rows
    from trainoff.engines.torch.ddp_worker import reporting_failures, work

    assignment = given["assignment"]
    (sent,) = given["sent"]
    with reporting_failures(assignment):
        torch.set_num_threads(ceil(assignment.job.cores))
        work(assignment, lambda job: unpack_rows(ray.get(sent)))
