"""The driver's connection to a Ray cluster. It imports Ray, so `open` imports it."""

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

CALL_S = 10.0  # how long an existing cluster may take to reply
GROUP_S = 120  # how long workers wait for each other


def connect(address: str) -> None:
    """Connect to a cluster that the trial has started."""
    if address.startswith("127.0.0.1:"):
        stay_on_loopback()
    ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, include_dashboard=False)


def connect_to(address: str) -> None:
    """Connect to an existing cluster; raise TrainoffError if there is none."""
    name, _, port = address.rpartition(":")
    try:
        socket.create_connection((name, int(port)), CALL_S).close()
        nodes = local_nodes(address)
        services.find_node_ids = lambda: nodes  # Ray would look for processes outside the trial's PID namespace
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, ValueError, RuntimeError) as error:
        raise TrainoffError(f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}") from error


def local_nodes(address: str) -> list[str]:
    """Return the nodes of a cluster that run on this machine, of which a driver needs one."""
    nodes = GcsClient(address=address).get_all_node_info(timeout=CALL_S).values()
    addresses = {each.address for interface in psutil.net_if_addrs().values() for each in interface}
    local = [node.node_id.hex() for node in nodes if node.node_manager_address in addresses]
    if not local:
        raise TrainoffError(f"no node of the Ray cluster at {address} is on this machine, and a driver needs one")
    return local


def host() -> str:
    """Return the address at which Ray's workers reach this process."""
    return str(ray.util.get_node_ip_address())


def ship(job: Job) -> list[Any]:
    """Put compact rows into Ray's object store, from which every node fetches them once.

    The reference is in a list, so that Ray passes it on and not the rows.
    """
    return [ray.put(pack_rows(job))]


def trainer(job: Job, config: Mapping[str, Any], restarts: int) -> TorchTrainer:
    """Return a trainer with one worker on every node."""
    size = ScalingConfig(
        num_workers=job.workers, resources_per_worker={"CPU": ceil(job.cores)}, placement_strategy="SPREAD"
    )
    return TorchTrainer(
        train,
        train_loop_config=dict(config),
        scaling_config=size,
        torch_config=TorchConfig(backend="gloo", timeout_s=GROUP_S),
        run_config=RunConfig(
            name="trainoff", storage_path=str(job.folder / "ray"), failure_config=FailureConfig(max_failures=restarts)
        ),
    )


def disconnect(alive: bool) -> None:
    """Disconnect from the cluster, unless its head is gone."""
    atexit.unregister(ray.shutdown)
    if alive:
        ray.shutdown()


def train(config: Mapping[str, Any]) -> None:
    """Train on a worker, whose process group Ray Train has formed, with the rows from Ray's store."""
    import ray
    import torch

    from trainoff.engines.shared.shipping import unpack_rows
    from trainoff.engines.torch.ddp_worker import reporting_failures, work

    assignment = config["assignment"]
    (sent,) = config["sent"]
    with reporting_failures(assignment):
        torch.set_num_threads(ceil(assignment.job.cores))
        work(assignment, lambda job: unpack_rows(ray.get(sent)))
