"""Claims about TensorFlow on Spark (000, 001, 002, 003): the extension that all of them wished for."""

from __future__ import annotations

from trainoff.analysis.format import quality, seconds
from trainoff.reproductions.evidence import Evidence, Finding, Lacking, alike, check, found, larger, ratio

ENGINE = "tf-on-spark"
MODES = ("sync", "async", "model-parallel")


def _ended(seen: Evidence) -> str:
    told = [f"{record.mode} {quality(record.result)}" for record in seen.good]
    return ", ".join(dict.fromkeys(told))


@check
def tf_on_spark_runs_in_every_mode(seen: Evidence) -> Finding:
    own = seen.of(engine=ENGINE)
    if not own.records:
        raise Lacking("no training on Spark ran")
    there = {record.mode for record in own.good}
    reason = "inference is every trial's test; tensorboard = true writes what TensorBoard shows"
    return found(there >= set(MODES), _ended(own) or "no trial ended well", reason)


@check
def tf_on_spark_is_fed_both_ways(seen: Evidence) -> Finding:
    own = seen.of(study="systems", engine=ENGINE, workers=2)
    ways = own.by("feed")
    if len(ways) < 2:
        raise Lacking("not both feeds ran")
    told = {feed: seconds(part.good[0].train_s) if part.good else part.records[0].status for feed, part in ways.items()}
    words = f"pushed by Spark {told['spark']}, pulled by TensorFlow {told['tensorflow']}"
    reason = "stores that both can read are tested with local files and an S3 server"
    return found(all(part.good for part in ways.values()), words, reason)


@check
def tf_on_spark_learns_like_tensorflow_and_beats_mllib(seen: Evidence) -> Finding:
    own = seen.of(study="systems")
    there = own.of(engine=ENGINE, workers=2, feed="tensorflow")
    alone, mllib = own.of(engine="tensorflow"), own.of(engine="spark-mllib")
    results = [one.result(name) for one, name in ((there, ENGINE), (alone, "tensorflow"), (mllib, "MLlib"))]
    told = f"{ENGINE} {quality(results[0])}, tensorflow {quality(results[1])}, MLlib {quality(results[2])}"
    exact = all(record.equivalence.get("verdict") == "exact" for record in there.good)
    slower = there.train_s(ENGINE) / alone.train_s("tensorflow")
    reason = f"the same arithmetic, checked; {ratio(slower)} the training time of tensorflow with the same cores"
    return found(exact and results[0] > results[2], told, reason)


@check
def model_parallel_is_exact(seen: Evidence) -> Finding:
    own = seen.of(mode="model-parallel").good
    if not own:
        raise Lacking("no model-parallel training ended well")
    told = ", ".join(f"{record.equivalence['verdict']}, {quality(record.result)}" for record in own)
    return found(all(record.equivalence["verdict"] == "exact" for record in own), told)


@check
def tf_on_spark_gains_with_nodes(seen: Evidence) -> Finding:
    own = seen.of(study="systems", engine=ENGINE, feed="tensorflow")
    one, two = (own.of(workers=workers).train_s(f"{workers} workers") for workers in (1, 2))
    told = f"two workers of one core each are {ratio(one / two)} as fast as one"
    return found(larger(one, two), told, "alike" if alike(one, two) else "")


@check
def async_runs_on_spark(seen: Evidence) -> Finding:
    own = seen.of(engine=ENGINE, mode="async").good
    if not own:
        raise Lacking("no asynchronous training on Spark ended well")
    told = f"asynchronous training came to {quality(own[0].result)} on a Spark cluster"
    return found(False, told, "by TensorFlow's servers on Spark's executors; Spark's own operations have no such mode")
