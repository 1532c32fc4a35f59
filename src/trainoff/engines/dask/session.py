"""A connection to Dask: the cluster of the trial or one that exists, its client, and what became of the workers."""

from __future__ import annotations

import contextlib
import logging
import platform
import socket
import time
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any
from urllib.parse import urlsplit

import dask
import distributed
from distributed import Client, LocalCluster, Security
from distributed.comm.core import CommClosedError

from trainoff.clusters import Attached
from trainoff.clusters.dask import Certificate, DaskCluster
from trainoff.engines.contract import Job, Watch, WorkerFailed
from trainoff.engines.shared.shipping import inspect_python, source_archive
from trainoff.errors import TrainoffError

CONNECT_S = 30.0
ATTACH_S = 10.0
MOST_LOSSES = 5  # of workers, in one training
INSIDE = {"distributed.scheduler.work-stealing": False}  # where there are no processes that the environment tells
DYING_S = 2.0  # how long after an error a process may take to be seen dead


class WorkerLost(Exception):
    """A worker is gone, and can be replaced."""

    def __init__(self, number: int) -> None:
        super().__init__(f"worker-{number} is gone")
        self.number = number


class DaskConnection:
    """A client of Dask and the workers that a trial has there. `start` returns when all of them are there."""

    def __init__(self, job: Job, watch: Watch) -> None:
        self.job, self.workers, self._watch = job, job.workers, watch
        self.client: Any = None
        self.addresses: list[str] = []  # of the workers, by their numbers
        self.lost = 0
        self.recovery_s = 0.0
        self._own: DaskCluster | None = None
        self._inside: Any = None
        self._about = ""

    @property
    def attached(self) -> bool:
        return isinstance(self.job.cluster, Attached)

    @property
    def threads(self) -> int:
        return ceil(self.job.cores)

    def start(self, modules: Sequence[str]) -> None:
        """Start what is ours, connect, and see that the workers can do what they will be asked."""
        logging.getLogger("distributed").setLevel(logging.ERROR)  # of losses the record speaks
        if isinstance(self.job.cluster, Attached):
            self._attach(self.job.cluster)
            self._about = examine(self, modules)
        elif self.job.params["protocol"] == "inproc":
            self._start_inside()
        else:
            self._start_processes()

    def _start_inside(self) -> None:
        """Scheduler and workers as threads of this process."""
        dask.config.set(INSIDE)
        nowhere = f"{self.job.cluster.nodes[0].address}:0"  # Dask opens a port for its pages though nobody asks
        self._inside = LocalCluster(
            n_workers=self.workers,
            threads_per_worker=self.threads,
            processes=False,
            protocol="inproc",
            dashboard_address=nowhere,
            worker_dashboard_address=nowhere,
            memory_limit=0,
            local_directory=str(self.job.folder / "dask"),
        )
        self.client = Client(self._inside)
        self.addresses = sorted(self._joined())

    def _start_processes(self) -> None:
        protocol = self.job.params["protocol"]
        security, certificate = self._secure() if protocol == "tls" else (None, None)
        self._own = DaskCluster(
            self.job.cluster, self.job.folder, self.threads, protocol, certificate, self.job.params["dashboard"]
        )
        address = self._own.start()
        self.client = Client(address, security=security, direct_to_workers=True, timeout=CONNECT_S)
        self.addresses = [self._own.wait_for(worker) for worker in self._own.workers]

    def _secure(self) -> tuple[Any, Certificate]:
        """A certificate for this cluster alone, and the same for the client."""
        made = Security.temporary()
        texts = {"ca": made.tls_ca_file, "cert": made.tls_scheduler_cert, "key": made.tls_scheduler_key}
        folder = self.job.folder / "dask-tls"
        folder.mkdir()
        for name, text in texts.items():
            path = folder / f"{name}.pem"
            path.touch(mode=0o600)
            path.write_text(text)
        return made, Certificate(*(str(folder / f"{name}.pem") for name in ("ca", "cert", "key")))

    def _attach(self, cluster: Attached) -> None:
        proof = dict(cluster.properties)
        security = (
            Security(
                tls_ca_file=proof.get("ca_file"),
                tls_client_cert=proof.get("cert"),
                tls_client_key=proof.get("key"),
                require_encryption=True,
            )
            if cluster.address.startswith("tls://")
            else None
        )
        try:
            check_answers(cluster.address, ATTACH_S)
            self.client = Client(cluster.address, security=security, direct_to_workers=True, timeout=ATTACH_S)
        except (OSError, ValueError, TypeError) as error:
            raise TrainoffError(
                f"no Dask scheduler answers at {cluster.address} ({words(error)}); is it running, can it "
                "be reached from here, and are ca_file, cert and key in [cluster.dask] right?"
            ) from error
        workers = self._joined()
        fit = sorted(address for address, each in workers.items() if each["nthreads"] >= self.threads)
        if len(fit) < self.workers:
            raise TrainoffError(
                f"the cluster has {len(fit)} workers of at least {self.threads} threads, and the trial needs "
                f"{self.workers}; ask for fewer workers or cores"
            )
        self.addresses = fit[: self.workers]

    def show(self, watch: Watch) -> None:
        """Say where the dashboard is, if one is wanted; and what the workers are, if they are somebody else's."""
        if self._about:
            watch.note("workers", self._about)
        if not self.job.params["dashboard"]:
            return
        if self._own and (port := self._own.dashboard_port()):
            watch.page("dask", self.job.cluster.nodes[0].address, port)
        elif self.attached:
            watch.note("dashboard", str(self.client.dashboard_link))

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Turn what Dask says of a failure into the words of the process that failed."""
        try:
            try:
                yield
            except (RuntimeError, CommClosedError, distributed.scheduler.KilledWorker) as error:
                self.check(DYING_S)
                raise TrainoffError(f"Dask: {words(error)}") from error
        except WorkerLost as error:
            raise self._gone(error.number) from error

    def check(self, within_s: float = 0.0) -> None:
        """Raise if the scheduler is gone, or a worker; looks for some time, because a process dies slowly."""
        deadline = time.monotonic() + within_s
        while True:
            self._check_scheduler()
            for number in range(len(self.addresses)):
                if not self._lives(number):
                    raise WorkerLost(number)
            if time.monotonic() >= deadline:
                return
            time.sleep(0.05)

    def _joined(self) -> dict[str, Any]:
        """What the scheduler knows of all workers, by address. The client's own list may be one without them."""
        found: dict[str, Any] = self.client.sync(self.client.scheduler.identity, n_workers=-1)["workers"]
        return found

    def _check_scheduler(self) -> None:
        if self._own and (code := self._own.scheduler.exit_code) is not None:
            raise WorkerFailed("scheduler", f"Dask's scheduler ended with code {code}", self._own.scheduler.tail())

    def _lives(self, number: int) -> bool:
        """Whether a worker is there: one of ours by its process, one of others by what their scheduler knows."""
        if self._own:
            return self._own.workers[number].exit_code is None
        return not self.attached or self.addresses[number] in self._joined()

    def replace(self, number: int, redone: int = 0) -> None:
        """Start a worker in the place of one that is gone; raises if too many are, or if the cluster is not ours.

        So many samples are seen again.
        """
        self._watch.lost(f"worker-{number}", redone)
        self.lost += 1
        if not self._own or self.lost > MOST_LOSSES:
            raise self._gone(number)
        self.job.cluster.end(self._own.workers[number])  # it may live, but has lost its desk
        self._own.workers[number] = self._own.start_worker(number)
        self.addresses[number] = self._own.wait_for(self._own.workers[number])

    def _gone(self, number: int) -> Exception:
        if not self._own:
            where = self.addresses[number] if number < len(self.addresses) else "?"
            return WorkerFailed(f"worker-{number}", f"the cluster lost its worker at {where}")
        worker = self._own.workers[number]
        return WorkerFailed(worker.role, f"the worker ended with code {worker.exit_code}", worker.tail())

    def report(self, watch: Watch) -> None:
        """What the record should say of losses."""
        if self.lost:
            watch.count("workers_lost", self.lost)
            watch.count("recovery_s", self.recovery_s)

    def stop(self) -> None:
        """Close the client; the cluster's processes are ended with the cluster."""
        if self.client:
            with contextlib.suppress(Exception):  # it may be in any state, and nothing is needed from it any more
                self.client.close(timeout=2)
        if self._inside:
            self._inside.close()


def words(error: BaseException) -> str:
    """The first line of what an error says, or its kind if it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_answers(address: str, timeout_s: float) -> None:
    """See that a scheduler listens, because Dask itself would try until its time is over; raises an OSError if not."""
    place = urlsplit(address)
    if place.scheme in ("tcp", "tls") and place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), timeout_s).close()


def examine(session: DaskConnection, modules: Sequence[str]) -> str:
    """What the workers are, in one sentence; an error if they cannot run the engine.

    Where trainoff is not installed on them it is sent along.
    """
    found = list(session.client.run(inspect_python(modules), workers=session.addresses).values())
    lacking = sorted({name for each in found for name in each["lacks"] if name in modules})
    if lacking:
        raise TrainoffError(
            f"the workers' Python ({found[0]['python']}) lacks {', '.join(lacking)}; install it on every node"
        )
    pythons = {each["version"].rsplit(".", 1)[0] for each in found}
    if pythons != {(own := platform.python_version().rsplit(".", 1)[0])}:
        raise TrainoffError(f"the workers run Python {', '.join(sorted(pythons))} and this machine {own}; use the same")
    if any("trainoff" in each["lacks"] for each in found):
        session.client.upload_file(source_archive(session.job.folder / "dask"))
    hosts = ", ".join(sorted({each["host"] for each in found}))
    return f"{session.workers} workers of {session.threads} threads on {hosts}, Python {found[0]['version']}"
