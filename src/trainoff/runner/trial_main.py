"""The trial process: builds the job, runs the engine through its life, and says what happens.

Run by the supervisor as `python -m trainoff.runner.trial_main FOLDER`. Everything it needs is in the folder.
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

from trainoff.clusters import THREADS, Process
from trainoff.clusters.local import die_with_parent
from trainoff.engines.contract import Refused, WorkerFailed
from trainoff.engines.shared.watch import Channel, Diverged, TrialWatch, network_bytes


class EndedBySignal(BaseException):
    """The runner asked the trial to end."""


STATUS = {MemoryError: "out-of-memory", Diverged: "diverged", Refused: "unsupported", EndedBySignal: "interrupted"}


def main() -> int:
    """Run the trial in the given folder; returns 0 only if the engine did all it should."""
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
            cluster.prepare(engine.modules, java=engine.cluster == "spark")
        with watch.phase("data_load"):
            job = make_job(trial, cluster, folder)
        every = trial.params["snapshot_every"] or job.order.rows // 3
        watch.prepare(job.order, job.model.parameters, every, trial.params["stop"])
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
            _tell_of(error, cluster.failed(), channel)
            raise
        finally:
            _enter_teardown(channel)
            engine.close()


def _tell_of(error: BaseException, failed: Process | None, channel: Channel) -> None:
    """If a worker failed or a process of the cluster died, its last words matter more than the driver's."""
    if isinstance(error, Diverged | Refused | EndedBySignal):
        return  # a worker that was lost and replaced is not to blame
    if isinstance(error, WorkerFailed):
        channel.emit("worker-log", role=error.role, tail=error.log)
        channel.emit("worker-failed", role=error.role, exit=None, tail=error.said)
    elif failed:
        end = f"\nit was killed by {failed.killed_by}" if failed.killed_by else ""  # it had no last words
        channel.emit("worker-failed", role=failed.role, exit=failed.exit_code, tail=failed.tail() + end)


def _enter_teardown(channel: Channel) -> None:
    """From here to the last process's end, time is teardown."""
    channel.emit("phase", name="teardown", network_bytes=network_bytes())


def claim_cores(cpus: list[int], cores: float) -> None:
    """Pin this process, and so all of the trial, to its CPUs, and tell every library how many threads to use.

    Must come before numpy is imported: OpenBLAS counts the CPUs then.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    for name in THREADS:
        os.environ[name] = str(threads(cores))


def threads(cores: float) -> int:
    """How many threads a library may use on so many cores."""
    return ceil(cores)


def describe(error: BaseException) -> dict[str, Any]:
    """What an exception means for the record: the status it suggests, one sentence, the traceback.

    A full disk says nothing about the engine: such a trial is unfinished.
    """
    from trainoff.errors import TrainoffError

    lines = _words(error).strip().splitlines() or [""]
    reason = (
        lines[0] if isinstance(error, TrainoffError | Diverged | Refused) else f"{type(error).__name__}: {lines[0]}"
    )
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), "crashed")
    if status == "crashed" and _out_of_memory(error):
        status = "out-of-memory"
    return {
        "status": status,
        "reason": reason,
        "traceback": "".join(traceback.format_exception(error)),
        "unfinished": isinstance(error, EndedBySignal) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT),
    }


def _words(error: BaseException) -> str:
    """What an exception says; that of a program which is gone by now can say nothing."""
    try:
        return str(error)
    except Exception:
        return "(its words are lost)"


def _out_of_memory(error: BaseException) -> bool:
    """Whether a framework says in its own words that memory ran out: torch's and TensorFlow's, on CPU and GPU."""
    named = type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError")
    words = ("out of memory", "not enough memory", "can't allocate memory")
    if isinstance(error, WorkerFailed):
        last = (error.said.strip().splitlines() or [""])[-1]
        return last.startswith("MemoryError") or "_ArrayMemoryError" in last or any(word in last for word in words)
    return named or (isinstance(error, RuntimeError) and any(word in _words(error) for word in words))


def _raise_ended(*_: object) -> NoReturn:
    raise EndedBySignal("asked to end")


if __name__ == "__main__":
    sys.exit(main())
