"""Claims about size, learning rate and iterations (000, 003, 004), and about TensorFlow on Spark (000)."""

from __future__ import annotations

from trainoff.analysis.format import count, quality, seconds
from trainoff.records import Record
from trainoff.reproductions.evidence import (
    ClaimFinding,
    Evidence,
    EvidenceMissing,
    alike,
    check,
    finding,
    larger,
    require,
    result_of,
    time_of,
    times_text,
)
from trainoff.reproductions.published import records

DAY_S = 86_400
VISIBLE = 0.01  # of accuracy: a difference that a user would notice
GIVEN_UP, LARGE = 0.02, 3.0  # the accuracy that may be given up, and how many times less training is a large gain


def _varied(evidence: Evidence, key: str) -> list[Evidence]:
    """Return for every engine the trials that differ in one parameter only."""
    every = []
    for runs in evidence.group_by("engine").values():
        rests = [_rest(record, key) for record in runs.records]
        usual = max(sorted(set(rests)), key=rests.count)
        part = Evidence([record for record, rest in zip(runs.records, rests, strict=True) if rest == usual])
        if len({record.params.get(key) for record in part.good}) > 1:
            every.append(part)
    require(every, f"no engine ended well with several values of `{key}`")
    return every


def _rest(record: Record, key: str) -> str:
    """Return a trial's parameters without one and without those that follow from others."""
    follows = ("snapshot_every", "epochs") if key == "max_iter" else ("snapshot_every",)  # MLlib has no other epochs
    rest = {name: str(value) for name, value in record.params.items() if name not in (key, *follows)}
    return str(sorted(rest.items()))


def _ends(runs: Evidence, key: str) -> tuple[Record, Record]:
    """Return the trials with the smallest and the largest value of a parameter; None means all rows."""

    def amount(record: Record) -> float:
        value = record.params.get(key)
        return float("inf") if value is None else float(value)

    return min(runs.good, key=amount), max(runs.good, key=amount)


@check
def train_time_grows_with_rows(evidence: Evidence) -> ClaimFinding:
    texts, grows = [], []
    for runs in _varied(evidence, "train_rows"):
        few, many = _ends(runs, "train_rows")
        rows = [record.dataset["train_rows"] for record in (few, many)]
        gain = time_of(many) / (few.train_s or 1.0)
        texts.append(f"{few.engine} {times_text(gain)}")
        grows.append(larger(gain, 1.0))
    return finding(all(grows), f"{rows[1] / rows[0]:.0f} times the rows take: {', '.join(texts)} as long")


@check
def more_epochs_cost_more_and_score_higher(evidence: Evidence) -> ClaimFinding:
    texts, more = [], []
    for key in ("epochs", "max_iter"):
        try:
            every = _varied(evidence, key)
        except EvidenceMissing:
            continue
        for few, many in (_ends(runs, key) for runs in every):
            texts.append(
                f"{few.engine}, {few.params[key]} to {many.params[key]}: {seconds(few.train_s)} to "
                f"{seconds(many.train_s)}, {quality(few.result)} to {quality(many.result)}"
            )
            more.append(larger(time_of(many), time_of(few)) and result_of(many) > result_of(few))
    require(texts, "no engine ended well with several numbers of iterations")
    return finding(all(more), "; ".join(texts))


@check
def learning_rate_changes_accuracy_not_time(evidence: Evidence) -> ClaimFinding:
    texts, fits = [], []
    for runs in _varied(evidence, "learning_rate"):
        times, results = [*map(time_of, runs.good)], [*map(result_of, runs.good)]
        texts.append(
            f"{runs.good[0].engine} {quality(min(results))} to {quality(max(results))} in "
            f"{seconds(min(times))} to {seconds(max(times))}"
        )
        fits.append(max(results) - min(results) > VISIBLE and not larger(max(times), min(times) * 1.2))
    reason = "the rate does not change the cost of a pass over the rows, but what it achieves"
    return finding(all(fits), "; ".join(texts), reason)


@check
def accuracy_trades_for_resources(evidence: Evidence) -> ClaimFinding:
    texts, trades = [], []
    for runs in evidence.group_by("engine").values():
        good = [record for record in runs.good if record.result and record.cpu_s and record.train_s]
        if len(good) < 2:
            continue
        best = max(good, key=result_of)
        similar = [record for record in good if result_of(record) >= result_of(best) - GIVEN_UP]
        cheap = min(similar, key=time_of)
        gain = time_of(best) / (cheap.train_s or 1.0)
        trades.append(gain > LARGE)
        texts.append(f"{best.engine}: {times_text(gain)} less training for {result_of(best) - result_of(cheap):.4f}")
    require(texts, "no engine ended well in several settings")
    return finding(any(trades), "; ".join(texts), "for two points of accuracy at most")


@check
def mllib_passes_over_the_data_as_fast_as_others(evidence: Evidence) -> ClaimFinding:
    """Compare samples per second in training, everything else being equal."""
    speeds = {
        engine: runs.value(lambda record: record.samples_per_s, f"the speed of {engine}")
        for engine, runs in evidence.group_by("engine").items()
    }
    require("spark-mllib" in speeds and len(speeds) >= 2, "there is no other engine to compare MLlib with")
    mllib = speeds.pop("spark-mllib")
    others = "".join(f", {engine} {speed:,.0f}" for engine, speed in speeds.items())
    text = f"samples a second: MLlib {mllib:,.0f}{others}"
    reason = "MLlib computes in float64, and evaluates its line search, too"
    return finding(not any(larger(speed, mllib) for speed in speeds.values()), text, reason)


@check
def torch_faster_than_tensorflow(evidence: Evidence) -> ClaimFinding:
    speed = {
        engine: evidence.select(engine=engine, train_rows=None).value(lambda record: record.samples_per_s, engine)
        for engine in ("torch", "tensorflow")
    }
    gain = speed["torch"] / speed["tensorflow"]
    text = f"torch {speed['torch']:,.0f} and tensorflow {speed['tensorflow']:,.0f} samples a second: {times_text(gain)}"
    reason = "a TensorFlow of today compiles the step, which that of the document did not"
    return finding(larger(gain, 1.0), text, "alike; " + reason if alike(*speed.values()) else reason)


@check
def one_machine_reaches_the_accuracy(evidence: Evidence) -> ClaimFinding:
    good = [record for record in evidence.good if record.mode == "single" and record.result and record.train_s]
    require(good, "no training on one machine ended well")
    best, theirs = (max(runs, key=result_of) for runs in (good, records("executors")))
    text = f"{best.engine} came to {quality(best.result)} in {seconds(best.train_s)} on one core"
    enough = result_of(best) > result_of(theirs) - VISIBLE and time_of(best) < DAY_S
    after = f"after {seconds(theirs.train_s)} on {count(round(theirs.workers * theirs.cores), 'core')}"
    reason = f"the best of the document's tables is {quality(theirs.result)}, {after}"
    return finding(not enough, text, reason)


ENGINE = "tf-on-spark"


@check
def tf_on_spark_runs_in_every_mode(evidence: Evidence) -> ClaimFinding:
    runs = evidence.select(engine=ENGINE)
    require(runs.records, "no training on Spark ran")
    modes = {record.mode for record in runs.good}
    results = ", ".join(dict.fromkeys(f"{record.mode} {quality(record.result)}" for record in runs.good))
    reason = "inference is every trial's test; tensorboard = true writes what TensorBoard shows"
    return finding(modes >= {"sync", "async", "model-parallel"}, results or "no trial ended well", reason)


@check
def tf_on_spark_reads_by_both_feeds(evidence: Evidence) -> ClaimFinding:
    runs = evidence.select(study="systems", engine=ENGINE, workers=2)
    feeds = runs.group_by("feed")
    require(len(feeds) >= 2, "not both feeds ran")
    times = {key: seconds(feed.good[0].train_s) if feed.good else feed.records[0].status for key, feed in feeds.items()}
    text = f"pushed by Spark {times['spark']}, pulled by TensorFlow {times['tensorflow']}"
    reason = "stores that both can read are tested with local files and an S3 server"
    return finding(all(part.good for part in feeds.values()), text, reason)


@check
def tf_on_spark_learns_like_tensorflow_and_beats_mllib(evidence: Evidence) -> ClaimFinding:
    runs = evidence.select(study="systems")
    on_spark = runs.select(engine=ENGINE, workers=2, feed="tensorflow")
    alone, mllib = runs.select(engine="tensorflow"), runs.select(engine="spark-mllib")
    results = [part.result(name) for part, name in ((on_spark, ENGINE), (alone, "tensorflow"), (mllib, "MLlib"))]
    text = f"{ENGINE} {quality(results[0])}, tensorflow {quality(results[1])}, MLlib {quality(results[2])}"
    exact = all(record.equivalence.get("verdict") == "exact" for record in on_spark.good)
    slower = on_spark.train_s(ENGINE) / alone.train_s("tensorflow")
    reason = f"the same arithmetic, checked; {times_text(slower)} the training time of tensorflow with the same cores"
    return finding(exact and results[0] > results[2], text, reason)


@check
def model_parallel_is_exact(evidence: Evidence) -> ClaimFinding:
    runs = evidence.select(mode="model-parallel").good
    require(runs, "no model-parallel training ended well")
    text = ", ".join(f"{record.equivalence['verdict']}, {quality(record.result)}" for record in runs)
    return finding(all(record.equivalence["verdict"] == "exact" for record in runs), text)


@check
def tf_on_spark_gains_with_nodes(evidence: Evidence) -> ClaimFinding:
    runs = evidence.select(study="systems", engine=ENGINE, feed="tensorflow")
    one, two = (runs.select(workers=workers).train_s(f"{workers} workers") for workers in (1, 2))
    text = f"two workers of one core each are {times_text(one / two)} as fast as one"
    return finding(larger(one, two), text, "alike" if alike(one, two) else "")


@check
def async_runs_on_spark(evidence: Evidence) -> ClaimFinding:
    runs = evidence.select(engine=ENGINE, mode="async").good
    require(runs, "no asynchronous training on Spark ended well")
    text = f"asynchronous training came to {quality(runs[0].result)} on a Spark cluster"
    reason = "by TensorFlow's servers on Spark's executors; Spark's own operations have no such mode"
    return finding(False, text, reason)
