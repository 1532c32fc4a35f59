"""Claims about executors, Spark and Dask (004): cores, workers and memory at equal resources, over epochs."""

from __future__ import annotations

from itertools import pairwise

from trainoff.analysis.bottleneck import worker_times
from trainoff.analysis.format import count, node_size, quality, ratio_text, seconds, size
from trainoff.records import Record
from trainoff.reproductions.evidence import (
    ClaimFinding,
    Evidence,
    alike,
    check,
    finding,
    larger,
    require,
    result_of,
    time_of,
    times_text,
)

SPARK, DASK = "spark-sklearn", "dask-sklearn"
SHORT, LONG, VERY_LONG, ENDLESS = 10, 100, 1000, 10000
SEED_EFFECT = 0.005  # of accuracy: what seeds alone change
HUNDREDTH, NEARLY_ALL = 0.01, 0.9


def _divided(evidence: Evidence, **wanted: object) -> Evidence:
    """Return the trials that have two cores in all."""
    return evidence.select(**wanted).filter(lambda record: record.workers * record.cores <= 2)


def _pairs(evidence: Evidence) -> list[tuple[Record, Record]]:
    """Return the trials of each setting on Spark and on Dask."""
    pairs = []
    for record in _divided(evidence, engine=SPARK).good:
        same = {"workers": record.workers, "cores": record.cores, "epochs": record.params["epochs"]}
        pairs += [(record, other) for other in evidence.select(engine=DASK, **same).good]
    require(pairs, "no setting ended well on both Spark and Dask")
    return pairs


@check
def more_cores_per_executor_hurt_beyond_five(evidence: Evidence) -> ClaimFinding:
    runs = evidence.select(workers=1, epochs=SHORT)
    five, six = runs.select(cores=5.0), runs.select(cores=6.0)
    crowded = any(record.oversubscribed for record in [*five.records, *six.records])
    require(not crowded, "this machine has fewer than five cores, so it could only show oversubscription")
    texts, worse = [], []
    for engine in (SPARK, DASK):
        before, after = (part.select(engine=engine).train_s(engine) for part in (five, six))
        texts.append(f"{engine} {seconds(before)} with 5, {seconds(after)} with 6")
        worse.append(larger(after, before))
    return finding(all(worse), ", ".join(texts))


@check
def accuracy_depends_on_the_cores(evidence: Evidence) -> ClaimFinding:
    texts, grows = [], []
    for engine in (SPARK, DASK):
        runs = _divided(evidence, engine=engine, epochs=LONG)
        results = {cores: part.result(engine) for cores, part in runs.group_by("cores").items() if part.good}
        require(len(results) >= 2, f"{engine} ended well in fewer than two configurations")
        each = ", ".join(f"{node_size(cores, None)} {quality(result)}" for cores, result in results.items())
        texts.append(f"{engine} {each}")
        grows.append(results[max(results)] - results[min(results)] > SEED_EFFECT)
    reason = "" if any(grows) else "cores change the speed; no result differs by more than seeds do"
    return finding(all(grows), "; ".join(texts), reason)


@check
def no_configuration_is_best_in_both(evidence: Evidence) -> ClaimFinding:
    texts, split = [], []
    for engine in (SPARK, DASK):
        runs = _divided(evidence, engine=engine, epochs=LONG).good
        require(len(runs) >= 2, f"{engine} ended well in fewer than two configurations")
        quickest, best = min(runs, key=time_of), max(runs, key=result_of)
        better = result_of(best) - result_of(quickest) > SEED_EFFECT
        split.append(better and larger(time_of(best), time_of(quickest)))
        texts.append(f"{engine} fastest with {quickest.workers}, most accurate with {count(best.workers, 'worker')}")
    return finding(any(split), "; ".join(texts), "" if any(split) else "their accuracies differ by less than seeds do")


@check
def larger_heaps_collect_longer(evidence: Evidence) -> ClaimFinding:
    def share(record: Record) -> float | None:
        spent = record.counts.get("gc_s")
        return spent / record.workers / record.train_s if spent is not None and record.train_s else None

    by_workers = _divided(evidence, engine=SPARK, epochs=LONG).group_by("workers")
    shares = {workers: part.value(share, "garbage collection") for workers, part in by_workers.items() if part.good}
    require(len(shares) >= 2, "Spark ended well in fewer than two configurations")
    many, one = shares[max(shares)], shares[min(shares)]
    text = f"{100 * many:.1f} % of the training with 1.4 GB an executor, {100 * one:.1f} % with 5.5 GB"
    reason = "the rows are in Python here; the heaps of the JVMs hold little"
    return finding(one > many and one > HUNDREDTH, text, reason)


@check
def dask_faster_than_spark(evidence: Evidence) -> ClaimFinding:
    gains = [time_of(spark) / (dask.train_s or 1.0) for spark, dask in _pairs(evidence)]
    text = f"Dask {min(gains):.1f} to {times_text(max(gains))} faster, in {len(gains)} configurations"
    return finding(all(larger(gain, 1.0) for gain in gains), text)


@check
def spark_more_accurate_than_dask(evidence: Evidence) -> ClaimFinding:
    pairs = _pairs(evidence)
    gaps = [result_of(spark) - result_of(dask) for spark, dask in pairs if spark.params["epochs"] >= LONG]
    require(gaps, "nothing ran for 100 epochs on both")
    text = f"Spark is {min(gaps):+.4f} to {max(gaps):+.4f} more accurate"
    reason = "on Spark every worker takes its slice of each batch, on Dask it has rows of its own"
    return finding(min(gaps) > SEED_EFFECT, text, reason)


@check
def accuracy_grows_with_epochs(evidence: Evidence) -> ClaimFinding:
    texts, grows = [], []
    for engine in (SPARK, DASK):
        runs = _divided(evidence, engine=engine, workers=2).filter(lambda record: record.params["epochs"] <= VERY_LONG)
        results = {epochs: part.result(engine) for epochs, part in runs.group_by("epochs").items()}
        require(len(results) >= 2, f"{engine} ended well with fewer than two numbers of epochs")
        grows.append(all(after > before for before, after in pairwise(results.values())))
        texts.append(f"{engine} " + ", ".join(f"{epochs}: {quality(result)}" for epochs, result in results.items()))
    return finding(all(grows), "; ".join(texts))


@check
def training_stops_before_a_thousand_epochs(evidence: Evidence) -> ClaimFinding:
    texts, same = [], []
    for engine in (SPARK, DASK):
        runs = _divided(evidence, engine=engine, workers=2)
        records = [record for epochs in (VERY_LONG, ENDLESS) for record in runs.select(epochs=epochs).good[:1]]
        require(len(records) >= 2, f"{engine} did not end well with 1,000 and 10,000 epochs")
        passes = [(record.samples_seen or 0) / record.dataset["train_rows"] for record in records]
        first, second = records
        same.append(first.samples_seen == second.samples_seen and first.result == second.result)
        texts.append(f"{engine} stopped by itself after {' and '.join(f'{each:.0f}' for each in passes)} epochs")
    return finding(all(same), "; ".join(texts), "early stopping: the loss no longer fell by 0.0001 in ten epochs")


@check
def more_dask_workers_take_longer_on_small_data(evidence: Evidence) -> ClaimFinding:
    times = _divided(evidence, engine=DASK, epochs=LONG).train_times("workers")
    require(len(times) >= 2, "Dask ended well with fewer than two numbers of workers")
    text = ", ".join(f"{count(workers, 'worker')} {seconds(took)}" for workers, took in times.items())
    return finding(larger(times[max(times)], times[min(times)]), text, "two cores in all")


@check
def dask_keeps_its_workers_busy(evidence: Evidence) -> ClaimFinding:
    runs = _divided(evidence, engine=DASK, epochs=LONG).good
    shares = [times.computing for record in runs if (times := worker_times(record))]
    require(shares, "the times of Dask's workers are not on record")
    text = f"workers computed {100 * min(shares):.0f} to {100 * max(shares):.0f} % of the training"
    return finding(min(shares) > NEARLY_ALL, text, "the rest is waiting for the slowest, and for weights")


@check
def dask_starts_sooner_and_needs_less_memory(evidence: Evidence) -> ClaimFinding:
    pairs, start = _pairs(evidence), "cluster_start"
    sooner = [(spark.phases_s.get(start) or 0.0) / (dask.phases_s.get(start) or 1.0) for spark, dask in pairs]
    lighter = [(spark.peak_memory_bytes or 0) / (dask.peak_memory_bytes or 1) for spark, dask in pairs]
    spark, dask = pairs[0]
    text = (
        f"its cluster starts {ratio_text(min(sooner))} to {times_text(max(sooner))} sooner; "
        f"{size(dask.peak_memory_bytes)} against {size(spark.peak_memory_bytes)} of memory "
        f"with {count(spark.workers, 'worker')}"
    )
    return finding(min(sooner) > 1 and min(lighter) > 1, text, "memory alike" if alike(min(lighter), 1.0) else "")
