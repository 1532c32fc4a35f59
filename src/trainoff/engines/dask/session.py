"""A connection to Dask: the trial's own cluster or an existing one, its client, and its lost workers."""

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
from trainoff.clusters.dask import DaskCluster
from trainoff.engines.contract import Job, Watch, WorkerFailed
from trainoff.engines.shared.shipping import inspect_python, source_archive
from trainoff.errors import TrainoffError

CONNECT_S = 30.0
ATTACH_S = 10.0
MAX_LOST_WORKERS = 5  # in one training
INPROC_CONFIG = {"distributed.scheduler.work-stealing": False}  # other clusters read it from their environment
EXPLAIN_S = 2.0  # how long after an error it may take until a process is seen to have ended


class WorkerLost(Exception):
    """A worker is gone, and can be replaced."""

    def __init__(self, index: int) -> None:
        super().__init__(f"worker-{index} is gone")
        self.index = index


class DaskConnection:
    """A Dask client, and the workers that a trial uses. `start` returns when all of them are there."""

    def __init__(self, job: Job, watch: Watch) -> None:
        self.job, self.workers, self._watch = job, job.workers, watch
        self.client: Any = None
        self.addresses: list[str] = []  # of the workers, by their index
        self.lost = 0
        self.recovery_s = 0.0
        self._cluster: DaskCluster | None = None  # the trial's own processes
        self._local_cluster: Any = None  # or threads

    @property
    def attached(self) -> bool:
        return isinstance(self.job.cluster, Attached)

    @property
    def threads(self) -> int:
        return ceil(self.job.cores)

    def start(self, modules: Sequence[str]) -> None:
        """Start the cluster unless it exists, connect, and check that the workers have the modules."""
        logging.getLogger("distributed").setLevel(logging.ERROR)  # losses are in the record
        if isinstance(self.job.cluster, Attached):
            self._attach(self.job.cluster)
            self._watch.note("workers", check_workers(self, modules))
            if self.job.params["dashboard"]:
                self._watch.note("dashboard", str(self.client.dashboard_link))
        elif self.job.params["protocol"] == "inproc":
            self._start_threads()
        else:
            self._start_processes()

    def _start_threads(self) -> None:
        """Start scheduler and workers as threads of this process."""
        dask.config.set(INPROC_CONFIG)
        no_dashboard = f"{self.job.cluster.nodes[0].address}:0"  # Dask opens a port in any case
        self._local_cluster = LocalCluster(
            n_workers=self.workers,
            threads_per_worker=self.threads,
            processes=False,
            protocol="inproc",
            dashboard_address=no_dashboard,
            worker_dashboard_address=no_dashboard,
            memory_limit=0,
            local_directory=str(self.job.folder / "dask"),
        )
        self.client = Client(self._local_cluster)
        self.addresses = sorted(self._registered())

    def _start_processes(self) -> None:
        protocol, dashboard = self.job.params["protocol"], self.job.params["dashboard"]
        security, tls_options = self._secure() if protocol == "tls" else (None, [])
        self._cluster = DaskCluster(self.job.cluster, self.job.folder, self.threads, protocol, tls_options, dashboard)
        address = self._cluster.start()
        self.client = Client(address, security=security, direct_to_workers=True, timeout=CONNECT_S)
        self.addresses = [self._cluster.wait_for(worker) for worker in self._cluster.workers]
        if dashboard and (port := self._cluster.dashboard_port()):
            self._watch.page("dask", self.job.cluster.nodes[0].address, port)

    def _secure(self) -> tuple[Any, list[str]]:
        """Make a certificate for this cluster; return the client's security and the options of the processes."""
        security, options = Security.temporary(), []
        certificate, key = security.tls_scheduler_cert, security.tls_scheduler_key
        texts = {"ca-file": security.tls_ca_file, "cert": certificate, "key": key}
        folder = self.job.folder / "dask-tls"
        folder.mkdir()
        for name, text in texts.items():
            path = folder / f"{name}.pem"
            path.touch(mode=0o600)
            path.write_text(text)
            options += [f"--tls-{name}", str(path)]
        return security, options

    def _attach(self, cluster: Attached) -> None:
        security = None
        if cluster.address.startswith("tls://"):
            security = Security(
                tls_ca_file=cluster.properties.get("ca_file"),
                tls_client_cert=cluster.properties.get("cert"),
                tls_client_key=cluster.properties.get("key"),
                require_encryption=True,
            )
        try:
            url = urlsplit(cluster.address)
            if url.scheme in ("tcp", "tls") and url.hostname and url.port:  # Dask itself would try until its timeout
                socket.create_connection((url.hostname, url.port), ATTACH_S).close()
            self.client = Client(cluster.address, security=security, direct_to_workers=True, timeout=ATTACH_S)
        except (OSError, ValueError, TypeError) as error:
            raise TrainoffError(
                f"no Dask scheduler answers at {cluster.address} ({first_line(error)}); is it running, can it "
                "be reached from here, and are ca_file, cert and key in [cluster.dask] right?"
            ) from error
        workers = self._registered()
        fit = sorted(address for address, each in workers.items() if each["nthreads"] >= self.threads)
        if len(fit) < self.workers:
            raise TrainoffError(
                f"the cluster has {len(fit)} workers of at least {self.threads} threads, and the trial needs "
                f"{self.workers}; ask for fewer workers or cores"
            )
        self.addresses = fit[: self.workers]

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Turn Dask's errors into those of the process that failed."""
        try:
            try:
                yield
            except (RuntimeError, CommClosedError, distributed.scheduler.KilledWorker) as error:
                self.check(EXPLAIN_S)
                raise TrainoffError(f"Dask: {first_line(error)}") from error
        except WorkerLost as error:
            raise self._explain_loss(error.index) from error

    def check(self, within_s: float = 0.0) -> None:
        """Raise if the scheduler or a worker is gone, or will be within some seconds: a process dies slowly."""
        deadline = time.monotonic() + within_s
        while True:
            if self._cluster and (code := self._cluster.scheduler.exit_code) is not None:
                log = self._cluster.scheduler.tail()
                raise WorkerFailed("scheduler", f"Dask's scheduler ended with code {code}", log)
            for index in range(len(self.addresses)):
                if not self._is_alive(index):
                    raise WorkerLost(index)
            if time.monotonic() >= deadline:
                return
            time.sleep(0.05)

    def _registered(self) -> dict[str, Any]:
        """Return what the scheduler knows of all workers, by address. The client's own list may lack some."""
        workers: dict[str, Any] = self.client.sync(self.client.scheduler.identity, n_workers=-1)["workers"]
        return workers

    def _is_alive(self, index: int) -> bool:
        """Return whether a worker is there: by its process, or in an existing cluster by what the scheduler knows."""
        if self._cluster:
            return self._cluster.workers[index].exit_code is None
        return not self.attached or self.addresses[index] in self._registered()

    def replace(self, index: int, redone: int = 0) -> None:
        """Start a worker in place of one that is gone, whose loss means to see `redone` samples again.

        Raises if too many are gone, or if the cluster is not the trial's own.
        """
        self._watch.lost(f"worker-{index}", redone)
        self.lost += 1
        if not self._cluster or self.lost > MAX_LOST_WORKERS:
            raise self._explain_loss(index)
        self.job.cluster.end(self._cluster.workers[index])  # it may live, but has lost its actor
        self._cluster.workers[index] = self._cluster.start_worker(index)
        self.addresses[index] = self._cluster.wait_for(self._cluster.workers[index])

    def _explain_loss(self, index: int) -> Exception:
        if not self._cluster:
            address = self.addresses[index] if index < len(self.addresses) else "?"
            return WorkerFailed(f"worker-{index}", f"the cluster lost its worker at {address}")
        worker = self._cluster.workers[index]
        return WorkerFailed(worker.role, f"the worker ended with code {worker.exit_code}", worker.tail())

    def report(self, watch: Watch) -> None:
        """Report the lost workers."""
        if self.lost:
            watch.count("workers_lost", self.lost)
            watch.count("recovery_s", self.recovery_s)

    def stop(self) -> None:
        """Close the client; the cluster's processes are ended with the cluster."""
        if self.client:
            with contextlib.suppress(Exception):  # it may be in any state, and is no longer needed
                self.client.close(timeout=2)
        if self._local_cluster:
            self._local_cluster.close()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_workers(session: DaskConnection, modules: Sequence[str]) -> str:
    """Describe the workers of an existing cluster in one sentence; raise if they cannot run the engine.

    If trainoff is not installed on them it is sent along.
    """
    found = list(session.client.run(inspect_python(modules), workers=session.addresses).values())
    lacking = sorted({name for each in found for name in each["lacks"] if name in modules})
    if lacking:
        raise TrainoffError(
            f"the workers' Python ({found[0]['python']}) lacks {', '.join(lacking)}; install it on every node"
        )
    theirs = {each["version"].rsplit(".", 1)[0] for each in found}
    if theirs != {(ours := platform.python_version().rsplit(".", 1)[0])}:
        raise TrainoffError(f"the workers run Python {', '.join(sorted(theirs))} and this machine {ours}; use the same")
    if any("trainoff" in each["lacks"] for each in found):
        session.client.upload_file(source_archive(session.job.folder / "dask"))
    hosts = ", ".join(sorted({each["host"] for each in found}))
    return f"{session.workers} workers of {session.threads} threads on {hosts}, Python {found[0]['version']}"
