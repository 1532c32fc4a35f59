"""What every engine on Dask does alike: start the cluster or attach to one, connect, let go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from trainoff.engines.contract import Engine, Job, Knob, Watch
from trainoff.engines.shared.storage import far_away, refuses_storage

if TYPE_CHECKING:
    from trainoff.engines.dask.session import Session
    from trainoff.study import Trial


class DaskEngine(Engine):
    """An engine on a Dask cluster. `open` of a subclass goes on once `self.session` is connected."""

    package = "distributed"
    extra = "dask"
    cluster = "dask"
    modules: ClassVar[tuple[str, ...]] = ("dask", "distributed", "pyarrow")
    on_workers: ClassVar[tuple[str, ...]] = ("numpy", "pyarrow")  # what the Python of the workers must have
    knobs: ClassVar[Mapping[str, Knob]] = {
        "protocol": Knob(
            str,
            "tcp",
            "how the processes of the cluster speak; inproc: as threads of one process, they need not",
            choices=("tcp", "tls", "inproc"),
        ),
        "dashboard": Knob(bool, False, "whether Dask shows its dashboard while it trains"),
        "storage": Knob(
            str,
            None,
            "where the workers read the rows: a folder at file://, s3://, gs://, hdfs:// or an address of fsspec's; "
            "written there first if they are not. By default in a folder of this machine",
        ),
    }
    session: Session | None = None

    def refuses(self, trial: Trial) -> str | None:
        if trial.attached and trial.params["protocol"] != "tcp":
            return "a cluster that exists speaks as it does, which its address says; leave `protocol` out"
        if trial.cluster == "hosts" and trial.params["protocol"] == "inproc":
            return "threads of one process cannot be spread over hosts; leave `protocol` out"
        if trial.params["dashboard"] and trial.params["protocol"] == "inproc":
            return "a cluster inside one process shows no dashboard; leave `dashboard` out"
        return refuses_storage(trial.params["storage"]) or self.refuses_l2(trial)

    def outside(self, trial: Trial) -> str | None:
        return far_away(trial.params["storage"])

    def open(self, job: Job, watch: Watch) -> None:
        with watch.phase("import"):
            from trainoff.engines.dask.session import Session
        self.session = Session(job, watch)
        with watch.phase("cluster_start"), self.session.failures():
            self.session.start(self.on_workers)
            self.session.show(watch)

    def close(self) -> None:
        if self.session:
            self.session.stop()
