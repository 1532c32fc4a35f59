"""What bounded a trial, whatever its engine tells of its workers, and the figure that says so."""

from __future__ import annotations

from trainoff.analysis.bottleneck import BUSY, Bound, bound
from trainoff.analysis.format import seconds
from trainoff.records import Record

MUCH = 0.2  # of the training: what takes less bounds nothing
COLLECTING = ("gc_s", "python_gc_s")  # garbage collection, of the Java machine and of Python
STALLS = {"memory": "memory_pressure", "disk": "io_pressure"}


def bottleneck(record: Record) -> Bound | None:
    """What held the training up, and the share that says so; None where nothing is known.

    First what makes everything else wait: memory, storage, garbage collection, a busy GPU. Then busy CPUs, or what the
    workers did. Where an engine does not tell that, CPUs that are not busy are idle for a reason that is not known.
    """
    stalled = [found for found in (*_stalls(record), *_garbage(record)) if found.share >= MUCH]
    if stalled:
        return max(stalled, key=lambda found: found.share)
    if record.counts.get("gpu_busy", 0.0) >= BUSY:
        return Bound("GPU", record.counts["gpu_busy"])
    busy = record.training.get("cpu_share")
    if (held := bound(record)) or busy is None:
        return held
    return Bound("CPU", busy) if busy >= BUSY else Bound("idle", 1 - busy)


def _stalls(record: Record) -> list[Bound]:
    return [Bound(kind, record.noise.get(name) or 0.0) for kind, name in STALLS.items()]


def _garbage(record: Record) -> list[Bound]:
    spent = sum(record.counts.get(name, 0.0) for name in COLLECTING)
    return [Bound("garbage", spent / record.train_s / record.workers)] if record.train_s else []


def bottleneck_sentence(record: Record) -> str | None:
    """What bounded a trial, in one sentence; what ran out of memory was bounded by that."""
    if record.status == "out-of-memory":
        return f"{record.engine} was memory-bound: {record.reason}."
    held = bottleneck(record)
    return f"In {seconds(record.train_s)} of training {record.engine} was {held}." if held else None
