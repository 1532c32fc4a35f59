"""The `hosts` cluster: machines that the user reaches by ssh, each with one worker, and no cluster manager."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trainoff.clusters.local import PROCESS_GRACE_S, THREADS, Cluster, Node, Process, address_towards
from trainoff.clusters.ssh.client import Ssh, compare_facts, distributions, remote_path, remote_paths
from trainoff.clusters.ssh.connection import TOKEN, Connection, SentFiles
from trainoff.errors import TrainoffError

PASSED = ("TRAINOFF_", "MALLOC_")  # prefixes of environment variables that processes on hosts inherit, besides THREADS

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class HostsPlan:
    """Which hosts, how they are reached, and what a worker may use of them."""

    hosts: Sequence[str]
    ssh: Ssh
    agent: str  # the module that runs on a host
    cores: float
    memory_bytes: int | None = None
    here: str | None = None  # this machine's address as the hosts see it
    private: Sequence[str] = ()  # patterns of files in the trial's folder that are not sent


@dataclass
class Host:
    """A node, its connection, the files it has, and its paths."""

    node: Node
    link: Connection
    sent: SentFiles | None  # None if it shares this machine's disk
    paths: Mapping[str, str]  # by the path on this machine


class Hosts(Cluster):
    """One node for every host. Processes of `driver_node` run on this machine."""

    def __init__(self, plan: HostsPlan, folder: Path) -> None:
        super().__init__(1, folder)
        self._plan, self._folder = plan, folder
        self.python = plan.ssh.python
        self._links = [Connection(host, plan.ssh, folder) for host in plan.hosts]
        self._hosts: dict[str, Host] = {}

    def prepare(self, modules: Sequence[str], *, java: bool) -> None:
        self._logs.mkdir(exist_ok=True)
        (self._folder / TOKEN).write_text(secrets.token_hex())
        path = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        request = {"packages": distributions(modules), "path": path, "agent": self._plan.agent}
        for host in _for_all(lambda link: self._open(link, request, java), self._links):
            self._hosts[host.node.name] = host
        self.nodes = [self._hosts[link.host].node for link in self._links]
        address = self.nodes[0].address
        try:
            self.driver_node = Node("here", self._plan.here or address_towards(address))
        except OSError as error:
            raise TrainoffError(
                f"there is no route to {address} ({error.strerror}); say how the hosts see this machine, as in "
                'here = "10.0.0.1"'
            ) from error

    def _open(self, link: Connection, request: Mapping[str, object], java: bool) -> Host:
        facts = link.connect(request)
        compare_facts(link.host, self.python, facts)
        if len(facts["connection"]) != 4:
            raise TrainoffError(
                f"{link.host} does not say at which address it was reached: its ssh server sets no SSH_CONNECTION"
            )
        address = facts["connection"][2]
        ready = link.open(
            {
                "folder": str(self._folder),
                "token": (self._folder / TOKEN).read_text(),
                "host": link.host,
                "address": address,
                "cores": self._plan.cores,
                "memory_bytes": self._plan.memory_bytes,
                "java": java,
            }
        )
        sent = None if ready["shared"] else SentFiles(self._folder, (*self._plan.private, "logs/*", "tmp/*", TOKEN))
        return Host(Node(link.host, address), link, sent, remote_paths(ready, self.python))

    def _start(self, node: Node, argv: Sequence[str], env: Mapping[str, str], role: str) -> Process:
        if node == self.driver_node:
            return super()._start(node, argv, env, role)
        host = self._hosts[node.name]
        self._deliver(host)
        passed = {name: value for name, value in os.environ.items() if name in THREADS or name.startswith(PASSED)}
        argv = [remote_path(part, host.paths) for part in argv]
        env = {name: remote_path(value, host.paths) for name, value in {**passed, **env}.items()}
        return host.link.start(argv, env, role, self._logs / f"{role}.txt")

    def send_files(self, paths: Iterable[Path]) -> None:
        outside = [path for path in paths if not path.is_relative_to(self._folder)]
        _for_all(lambda host: host.link.send_files(outside), self._hosts.values())
        _for_all(self._deliver, self._hosts.values())

    @staticmethod
    def _deliver(host: Host) -> None:
        """Send what is new in the trial's folder."""
        if host.sent:
            host.link.deliver(host.sent.updates())

    def fetch_logs(self) -> None:
        _for_all(lambda host: host.link.request("logs"), [host for host in self._hosts.values() if host.sent])

    def stop(self, grace_s: float = PROCESS_GRACE_S) -> None:
        """End every process, fetch the logs, and disconnect."""
        try:
            super().stop(grace_s)
            self.fetch_logs()
        except TrainoffError:
            pass  # a host that is lost has nothing more to say
        finally:
            _for_all(Connection.close, self._links)


def _for_all(work: Callable[[Item], Result], hosts: Iterable[Item]) -> list[Result]:
    """Call a function for all hosts in parallel; raise the first error when all are done."""
    items = list(hosts)
    with ThreadPoolExecutor(max(1, len(items))) as pool:
        return list(pool.map(work, items))
