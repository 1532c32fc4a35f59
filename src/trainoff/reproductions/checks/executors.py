"""Claims about executors, Spark and Dask (004): cores, workers and memory at equal resources, over epochs."""

from __future__ import annotations

from itertools import pairwise

from trainoff.analysis.bottleneck import worker_times
from trainoff.analysis.format import count, node_size, quality, ratio_text, seconds, size
from trainoff.records import Record
from trainoff.reproductions.evidence import (
    ClaimFinding,
    Evidence,
    EvidenceMissing,
    alike,
    check,
    finding,
    larger,
    not_comparable,
    times_text,
)

SPARK, DASK = "spark-sklearn", "dask-sklearn"
SHORT, LONG, VERY_LONG, ENDLESS = 10, 100, 1000, 10000
POINT = 0.005  # of accuracy: what seeds alone change
MACHINE = 2  # cores in all
HUNDREDTH, NEARLY_ALL = 0.01, 0.9


def divided(seen: Evidence, **wanted: object) -> Evidence:
    """The trials that have two cores in all."""
    return seen.of(**wanted).where(lambda record: record.workers * record.cores <= MACHINE)


def _pairs(seen: Evidence) -> list[tuple[Record, Record]]:
    """The same setting on Spark and on Dask."""
    found_ = []
    for record in divided(seen, engine=SPARK).good:
        same = {"workers": record.workers, "cores": record.cores, "epochs": record.params["epochs"]}
        found_ += [(record, other) for other in seen.of(engine=DASK, **same).good]
    if not found_:
        raise EvidenceMissing("no setting ended well on both Spark and Dask")
    return found_


@check
def more_cores_per_executor_hurt_beyond_five(seen: Evidence) -> ClaimFinding:
    own = seen.of(workers=1, epochs=SHORT)
    five, six = own.of(cores=5.0), own.of(cores=6.0)
    if any(record.oversubscribed for record in [*five.records, *six.records]):
        return not_comparable("this machine has fewer cores than five, so that it could only show what crowding does")
    told, worse = [], []
    for engine in (SPARK, DASK):
        before, after = (part.of(engine=engine).train_s(engine) for part in (five, six))
        told.append(f"{engine} {seconds(before)} with 5, {seconds(after)} with 6")
        worse.append(larger(after, before))
    return finding(all(worse), ", ".join(told))


@check
def accuracy_depends_on_the_cores(seen: Evidence) -> ClaimFinding:
    told, grows = [], []
    for engine in (SPARK, DASK):
        own = divided(seen, engine=engine, epochs=LONG)
        results = {cores: part.result(engine) for cores, part in own.by("cores").items() if part.good}
        if len(results) < 2:
            raise EvidenceMissing(f"{engine} ended well in fewer than two configurations")
        each = ", ".join(f"{node_size(cores, None)} {quality(one)}" for cores, one in results.items())
        told.append(f"{engine} {each}")
        grows.append(results[max(results)] - results[min(results)] > POINT)
    reason = "" if any(grows) else "cores change the speed; no result differs by more than seeds do"
    return finding(all(grows), "; ".join(told), reason)


@check
def no_configuration_is_best_in_both(seen: Evidence) -> ClaimFinding:
    told, split = [], []
    for engine in (SPARK, DASK):
        own = divided(seen, engine=engine, epochs=LONG).good
        if len(own) < 2:
            raise EvidenceMissing(f"{engine} ended well in fewer than two configurations")
        quickest = min(own, key=lambda record: record.train_s or 0.0)
        best = max(own, key=lambda record: record.result or 0.0)
        clear = (best.result or 0) - (quickest.result or 0) > POINT and larger(best.train_s or 0, quickest.train_s or 0)
        split.append(clear)
        told.append(f"{engine} fastest with {quickest.workers}, most accurate with {count(best.workers, 'worker')}")
    return finding(any(split), "; ".join(told), "" if any(split) else "their accuracies differ by less than seeds do")


@check
def larger_heaps_collect_longer(seen: Evidence) -> ClaimFinding:
    own = divided(seen, engine=SPARK, epochs=LONG)
    shares = {workers: _collected(part) for workers, part in own.by("workers").items() if part.good}
    if len(shares) < 2:
        raise EvidenceMissing("Spark ended well in fewer than two configurations")
    many, one = shares[max(shares)], shares[min(shares)]
    told = f"{100 * many:.1f} % of the training with 1.4 GB an executor, {100 * one:.1f} % with 5.5 GB"
    return finding(
        one > many and one > HUNDREDTH, told, "the rows are in Python here; the heaps of the JVMs hold little"
    )


def _collected(own: Evidence) -> float:
    """The share of the training that the JVM of an executor spent on garbage collection."""

    def share(record: Record) -> float | None:
        spent = record.counts.get("gc_s")
        return spent / record.workers / record.train_s if spent is not None and record.train_s else None

    return own.value(share, "garbage collection")


@check
def dask_faster_than_spark(seen: Evidence) -> ClaimFinding:
    gains = [(spark.train_s or 0.0) / (dask.train_s or 1.0) for spark, dask in _pairs(seen)]
    told = f"Dask {min(gains):.1f} to {times_text(max(gains))} faster, in {len(gains)} configurations"
    return finding(all(larger(gain, 1.0) for gain in gains), told)


@check
def spark_more_accurate_than_dask(seen: Evidence) -> ClaimFinding:
    gaps = [(s.result or 0) - (d.result or 0) for s, d in _pairs(seen) if s.params["epochs"] >= LONG]
    if not gaps:
        raise EvidenceMissing("nothing ran for 100 epochs on both")
    told = f"Spark is {min(gaps):+.4f} to {max(gaps):+.4f} more accurate"
    reason = "on Spark every worker takes its slice of each batch, on Dask it has rows of its own"
    return finding(min(gaps) > POINT, told, reason)


@check
def accuracy_grows_with_epochs(seen: Evidence) -> ClaimFinding:
    told, grows = [], []
    for engine in (SPARK, DASK):
        own = divided(seen, engine=engine, workers=2)
        results = {epochs: part.result(engine) for epochs, part in own.by("epochs").items() if epochs <= VERY_LONG}
        if len(results) < 2:
            raise EvidenceMissing(f"{engine} ended well with fewer than two numbers of epochs")
        line = [results[epochs] for epochs in sorted(results)]
        grows.append(all(after > before for before, after in pairwise(line)))
        told.append(f"{engine} " + ", ".join(f"{epochs}: {quality(one)}" for epochs, one in sorted(results.items())))
    return finding(all(grows), "; ".join(told))


@check
def training_stops_before_a_thousand_epochs(seen: Evidence) -> ClaimFinding:
    told, same = [], []
    for engine in (SPARK, DASK):
        own = divided(seen, engine=engine, workers=2)
        runs = [next(iter(own.of(epochs=epochs).good), None) for epochs in (VERY_LONG, ENDLESS)]
        if None in runs:
            raise EvidenceMissing(f"{engine} did not end well with 1,000 and 10,000 epochs")
        first, second = (record for record in runs if record)
        passes = [(record.samples_seen or 0) / record.dataset["train_rows"] for record in (first, second)]
        same.append(first.samples_seen == second.samples_seen and first.result == second.result)
        told.append(f"{engine} stopped by itself after {' and '.join(f'{one:.0f}' for one in passes)} epochs")
    return finding(all(same), "; ".join(told), "early stopping: the loss no longer fell by 0.0001 in ten epochs")


@check
def more_dask_workers_take_longer_on_small_data(seen: Evidence) -> ClaimFinding:
    own = divided(seen, engine=DASK, epochs=LONG)
    times = {int(workers): part.train_s("Dask") for workers, part in own.by("workers").items() if part.good}
    if len(times) < 2:
        raise EvidenceMissing("Dask ended well with fewer than two numbers of workers")
    told = ", ".join(f"{count(workers, 'worker')} {seconds(took)}" for workers, took in times.items())
    return finding(larger(times[max(times)], times[min(times)]), told, "two cores in all")


@check
def dask_keeps_its_workers_busy(seen: Evidence) -> ClaimFinding:
    own = [done.computing for record in divided(seen, engine=DASK, epochs=LONG).good if (done := worker_times(record))]
    if not own:
        raise EvidenceMissing("nothing is known of Dask's workers")
    told = f"workers computed {100 * min(own):.0f} to {100 * max(own):.0f} % of the training"
    return finding(min(own) > NEARLY_ALL, told, "the rest is waiting for the slowest, and for weights")


@check
def dask_starts_sooner_and_needs_less_memory(seen: Evidence) -> ClaimFinding:
    def start(record: Record) -> float | None:
        return record.phases_s.get("cluster_start")

    pairs = _pairs(seen)
    sooner = [(start(spark) or 0.0) / (start(dask) or 1.0) for spark, dask in pairs]
    lighter = [(spark.peak_memory_bytes or 0) / (dask.peak_memory_bytes or 1) for spark, dask in pairs]
    spark, dask = pairs[0]
    told = (
        f"its cluster starts {ratio_text(min(sooner))} to {times_text(max(sooner))} sooner; "
        f"{size(dask.peak_memory_bytes)} against {size(spark.peak_memory_bytes)} of memory "
        f"with {count(spark.workers, 'worker')}"
    )
    same = alike(min(lighter), 1.0)
    return finding(min(sooner) > 1 and min(lighter) > 1, told, "memory alike" if same else "")
