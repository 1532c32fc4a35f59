"""The `hosts` cluster: machines that the user reaches by ssh, each with one worker, and no cluster manager."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trainoff.clusters.local import GRACE_S, THREADS, Cluster, Node, Process, address_towards
from trainoff.clusters.ssh.client import Ssh, distributions, examine, moved, paths, places
from trainoff.clusters.ssh.connection import TOKEN, Connection, SentFiles
from trainoff.errors import TrainoffError

CARRIED = ("TRAINOFF_", "MALLOC_")  # what else of this environment processes on hosts have, besides numbers of threads

Each = TypeVar("Each")
Found = TypeVar("Found")


@dataclass(frozen=True)
class HostsPlan:
    """Which hosts, how they are reached, and what of them a worker may use."""

    hosts: Sequence[str]
    ssh: Ssh
    agent: str  # the module that keeps watch on a host
    cores: float
    memory_bytes: int | None = None
    here: str | None = None  # this machine's address as the hosts see it
    private: Sequence[str] = ()  # patterns of files in the trial's folder that are for nobody else


@dataclass
class Host:
    """A node, its connection, what it has of the trial's files, and where things lie on it."""

    node: Node
    link: Connection
    ledger: SentFiles | None  # None where its disk is this machine's
    places: Mapping[str, str]


class Hosts(Cluster):
    """One node for every host. `prepare` connects; what is started on `here` is a process of this machine."""

    def __init__(self, plan: HostsPlan, folder: Path) -> None:
        super().__init__(1, folder)
        self._plan, self._folder = plan, folder
        self.python = plan.ssh.python
        self._links = [Connection(host, plan.ssh, folder) for host in plan.hosts]
        self._hosts: dict[str, Host] = {}

    def prepare(self, modules: Sequence[str], *, java: bool) -> None:
        self._logs.mkdir(exist_ok=True)
        (self._folder / TOKEN).write_text(secrets.token_hex())
        asked = {"packages": distributions(modules), "path": paths(), "guard": self._plan.agent}
        for host in _at_once(lambda link: self._open(link, asked, java), self._links):
            self._hosts[host.node.name] = host
        self.nodes = [self._hosts[link.host].node for link in self._links]
        self.driver_node = Node("here", self._plan.here or _seen_from(self.nodes[0].address))

    def _open(self, link: Connection, asked: Mapping[str, object], java: bool) -> Host:
        facts = link.connect(asked)
        examine(link.host, self.python, facts)
        if len(facts["connection"]) != 4:
            raise TrainoffError(f"{link.host} does not say where it was reached: its ssh server sets no SSH_CONNECTION")
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
        ledger = None if ready["shared"] else SentFiles(self._folder, (*self._plan.private, "logs/*", "tmp/*", TOKEN))
        return Host(Node(link.host, address), link, ledger, places(ready, self.python))

    def _start(self, node: Node, argv: Sequence[str], env: Mapping[str, str], role: str) -> Process:
        if node == self.driver_node:
            return super()._start(node, argv, env, role)
        host = self._hosts[node.name]
        self._deliver(host)
        words = [moved(word, host.places) for word in argv]
        values = {name: moved(value, host.places) for name, value in {**passed_environment(), **env}.items()}
        return host.link.start(words, values, role, self._logs / f"{role}.txt")

    def send_files(self, paths: Iterable[Path]) -> None:
        wanted = [path for path in paths if not path.is_relative_to(self._folder)]
        _at_once(lambda host: host.link.send_files(wanted), self._hosts.values())
        _at_once(self._deliver, self._hosts.values())

    @staticmethod
    def _deliver(host: Host) -> None:
        """Send what is new in the trial's folder."""
        if host.ledger:
            host.link.deliver(host.ledger.news())

    def fetch_logs(self) -> None:
        _at_once(lambda host: host.link.fetch_logs(), [host for host in self._hosts.values() if host.ledger])

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End every process, fetch what they have written into logs, and let go of the hosts."""
        try:
            super().stop(grace_s)
            self.fetch_logs()
        except TrainoffError:
            pass  # a host that is lost has nothing more to say
        finally:
            _at_once(Connection.close, self._links)


def _at_once(work: Callable[[Each], Found], each: Iterable[Each]) -> list[Found]:
    """Do something with all hosts at the same time; the first error is raised when all are done."""
    every = list(each)
    with ThreadPoolExecutor(max(1, len(every))) as pool:
        return list(pool.map(work, every))


def passed_environment() -> dict[str, str]:
    """The part of this process's environment that processes on hosts have, too."""
    return {name: value for name, value in os.environ.items() if name in THREADS or name.startswith(CARRIED)}


def _seen_from(address: str) -> str:
    """This machine's address as a host sees it."""
    try:
        return address_towards(address)
    except OSError as error:
        raise TrainoffError(
            f"there is no way from here to {address} ({error.strerror}); say how the hosts see this machine, as in "
            'here = "10.0.0.1"'
        ) from error
