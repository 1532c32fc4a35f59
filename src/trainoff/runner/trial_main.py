"""The trial process: builds the job, runs the engine, and reports events.

The supervisor starts it as `python -m trainoff.runner.trial_main FOLDER`. Everything it needs is in the folder.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any, NoReturn

from trainoff.clusters import THREADS, Process, java
from trainoff.clusters.local import die_with_parent
from trainoff.engines.contract import Refused, WorkerFailed
from trainoff.engines.shared.watch import Channel, Diverged, TrialWatch, network_bytes


class EndedBySignal(BaseException):
    """The runner asked the trial to end."""


STATUS = {MemoryError: "out-of-memory", Diverged: "diverged", Refused: "unsupported", EndedBySignal: "interrupted"}


def main() -> int:
    """Run the trial in the given folder; return 0 if the engine has finished."""
    die_with_parent()
    folder = Path(sys.argv[1])
    spec = json.loads((folder / "trial.json").read_text())
    claim_cores(spec["cpus"], spec["trial"]["cores"])
    os.environ["TRAINOFF_EVENTS"] = str(folder / "events")
    os.environ["TRAINOFF_ROLE"] = "driver"
    signal.signal(signal.SIGTERM, _raise_ended)
    channel = Channel(folder / "events")
    watch = TrialWatch(channel, folder)
    try:
        _run(spec, folder, watch, channel)
    except BaseException as error:
        channel.emit("error", phase=watch.failed_in, **describe(error))
        with suppress(OSError):  # where the disk is full, there is no room for it
            traceback.print_exc()
        return 1
    channel.emit("done")
    return 0


def _run(spec: dict[str, Any], folder: Path, watch: TrialWatch, channel: Channel) -> None:
    import numpy as np

    from trainoff import engines
    from trainoff.runner.job import make_cluster, make_job
    from trainoff.study import Trial

    trial = Trial.from_json(spec["trial"])
    engine = engines.get(trial.engine)
    with make_cluster(trial, folder) as cluster:
        with watch.phase("cluster_start"):
            cluster.prepare(engine.modules, java=engine.cluster in java.NEEDED_BY)
        with watch.phase("data_load"):
            job = make_job(trial, cluster, folder)
        every = trial.params["snapshot_every"] or job.order.rows // 3
        watch.prepare(job.order, job.model.parameter_count, every, trial.params["stop"])
        try:
            engine.open(job, watch)
            with cluster.timed(), watch.phase("train"):
                engine.train(job, watch)
            with cluster.timed(), watch.phase("test"):
                labels = np.asarray(engine.predict(job.data.x_test))
                if labels.dtype.kind not in "iu":
                    raise TypeError(f"predict returned {labels.dtype} instead of whole numbers")
            np.save(folder / "predictions.npy", labels)
        except BaseException as error:
            watch.failed_in = watch.failed_in or watch.current
            _report_worker(error, cluster.failed(), channel)
            raise
        finally:
            channel.emit("phase", name="teardown", network_bytes=network_bytes())  # lasts until no process is left
            engine.close()


def _report_worker(error: BaseException, failed: Process | None, channel: Channel) -> None:
    """Report the worker or process of the cluster that failed first: its log says more than the driver's error."""
    if isinstance(error, Diverged | Refused | EndedBySignal):
        return  # a worker that was lost and replaced is not the cause
    if isinstance(error, WorkerFailed):
        channel.emit("worker-log", role=error.role, tail=error.log)
        channel.emit("worker-failed", role=error.role, exit=None, tail=error.said)
    elif failed:
        end = f"\nit was killed by {failed.killed_by}" if failed.killed_by else ""
        channel.emit("worker-failed", role=failed.role, exit=failed.exit_code, tail=failed.tail() + end)


def claim_cores(cpus: list[int], cores: float) -> None:
    """Pin this process, and so the whole trial, to its CPUs, and set the number of threads of every library.

    Must be called before numpy is imported, when OpenBLAS counts the CPUs.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    for name in THREADS:
        os.environ[name] = str(ceil(cores))


def describe(error: BaseException) -> dict[str, Any]:
    """Return what an exception means for the record: status, reason and traceback.

    A full disk says nothing about the engine, so that such a trial counts as unfinished.
    """
    from trainoff.errors import TrainoffError

    lines = _text(error).strip().splitlines() or [""]
    explained = isinstance(error, TrainoffError | Diverged | Refused)
    reason = lines[0] if explained else f"{type(error).__name__}: {lines[0]}"
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), "crashed")
    if status == "crashed" and _out_of_memory(error):
        status = "out-of-memory"
    return {
        "status": status,
        "reason": reason,
        "traceback": "".join(traceback.format_exception(error)),
        "unfinished": isinstance(error, EndedBySignal) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT),
    }


def _text(error: BaseException) -> str:
    """Return the text of an exception, which may fail for one of a program that has ended, such as a JVM."""
    try:
        return str(error)
    except Exception:
        return "(its text is lost)"


def _out_of_memory(error: BaseException) -> bool:
    """Return whether an exception of torch, TensorFlow or a worker means that memory ran out, on CPU or GPU."""
    named = type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError")
    phrases = ("out of memory", "not enough memory", "can't allocate memory")
    if isinstance(error, WorkerFailed):
        last = (error.said.strip().splitlines() or [""])[-1]
        return last.startswith("MemoryError") or any(phrase in last for phrase in ("_ArrayMemoryError", *phrases))
    return named or (isinstance(error, RuntimeError) and any(phrase in _text(error) for phrase in phrases))


def _raise_ended(*_: object) -> NoReturn:
    raise EndedBySignal("asked to end")


if __name__ == "__main__":
    sys.exit(main())
