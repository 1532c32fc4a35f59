"""Claims about the parameters of learning (000, 003, 004): what size, rate and iterations do to time and accuracy."""

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
    times_text,
)
from trainoff.reproductions.published import records

DAY_S = 86_400
WORTH = 0.01  # of accuracy: a difference that a user would see
GIVEN_UP, LARGE = 0.02, 3.0  # what accuracy may be given up, and how many times less training makes it worth it


def _varied(seen: Evidence, key: str) -> list[Evidence]:
    """For every engine, the trials that differ in nothing but one parameter."""
    every = []
    for own in seen.by("engine").values():
        usual = _usual(own, key)
        part = Evidence([record for record in own.records if _rest(record, key) == usual])
        if len({record.params.get(key) for record in part.good}) > 1:
            every.append(part)
    if not every:
        raise EvidenceMissing(f"no engine ended well with several values of `{key}`")
    return every


def _rest(record: Record, key: str) -> str:
    """A trial's parameters but for one, and for what follows from the others."""
    follows = ("snapshot_every", "epochs") if key == "max_iter" else ("snapshot_every",)  # MLlib has no other epochs
    rest = {name: str(value) for name, value in record.params.items() if name not in (key, *follows)}
    return str(sorted(rest.items()))


def _usual(own: Evidence, key: str) -> str:
    """The parameters, but for one, that most trials have."""
    rests = [_rest(record, key) for record in own.records]
    return max(sorted(set(rests)), key=rests.count)


def _ends(own: Evidence, key: str) -> tuple[Record, Record]:
    """The trials with the least and with the most of a parameter; None means all rows."""

    def amount(record: Record) -> float:
        value = record.params.get(key)
        return float("inf") if value is None else float(value)

    return min(own.good, key=amount), max(own.good, key=amount)


@check
def train_time_grows_with_rows(seen: Evidence) -> ClaimFinding:
    told, grows = [], []
    for own in _varied(seen, "train_rows"):
        few, many = _ends(own, "train_rows")
        rows = [record.dataset["train_rows"] for record in (few, many)]
        gain = (many.train_s or 0.0) / (few.train_s or 1.0)
        told.append(f"{few.engine} {times_text(gain)}")
        grows.append(larger(gain, 1.0))
    return finding(all(grows), f"{rows[1] / rows[0]:.0f} times the rows take: {', '.join(told)} as long")


@check
def more_epochs_cost_more_and_learn_more(seen: Evidence) -> ClaimFinding:
    told, more = [], []
    for key in ("epochs", "max_iter"):
        try:
            every = _varied(seen, key)
        except EvidenceMissing:
            continue
        for few, many in (_ends(own, key) for own in every):
            told.append(
                f"{few.engine}, {few.params[key]} to {many.params[key]}: {seconds(few.train_s)} to "
                f"{seconds(many.train_s)}, {quality(few.result)} to {quality(many.result)}"
            )
            more.append(larger(many.train_s or 0.0, few.train_s or 0.0) and (many.result or 0) > (few.result or 0))
    if not told:
        raise EvidenceMissing("no engine ended well with several numbers of iterations")
    return finding(all(more), "; ".join(told))


@check
def learning_rate_changes_accuracy_not_time(seen: Evidence) -> ClaimFinding:
    told, fits = [], []
    for own in _varied(seen, "learning_rate"):
        times = [record.train_s or 0.0 for record in own.good]
        results = [record.result or 0.0 for record in own.good]
        told.append(
            f"{own.good[0].engine} {quality(min(results))} to {quality(max(results))} in "
            f"{seconds(min(times))} to {seconds(max(times))}"
        )
        fits.append(max(results) - min(results) > WORTH and not larger(max(times), min(times) * 1.2))
    return finding(all(fits), "; ".join(told), "a rate costs nothing, and decides what a pass over the rows is worth")


@check
def accuracy_trades_for_resources(seen: Evidence) -> ClaimFinding:
    told, trades = [], []
    for own in seen.by("engine").values():
        good = [record for record in own.good if record.result and record.cpu_s and record.train_s]
        if len(good) < 2:
            continue
        best = max(good, key=lambda record: record.result or 0.0)
        near = [record for record in good if (record.result or 0.0) >= (best.result or 0.0) - GIVEN_UP]
        cheap = min(near, key=lambda record: record.train_s or 0.0)
        gain = (best.train_s or 0.0) / (cheap.train_s or 1.0)
        trades.append(gain > LARGE)
        told.append(
            f"{best.engine}: {times_text(gain)} less training for {(best.result or 0) - (cheap.result or 0):.4f}"
        )
    if not told:
        raise EvidenceMissing("no engine ended well in several settings")
    return finding(any(trades), "; ".join(told), "for two points of accuracy at most")


@check
def mllib_passes_over_the_data_as_fast_as_others(seen: Evidence) -> ClaimFinding:
    """Samples a second in training, everything else equal."""
    speeds = {
        engine: own.value(lambda record: record.samples_per_s, f"the speed of {engine}")
        for engine, own in seen.by("engine").items()
    }
    if "spark-mllib" not in speeds or len(speeds) < 2:
        raise EvidenceMissing("there is nobody to compare MLlib with")
    mllib = speeds.pop("spark-mllib")
    others = "".join(f", {engine} {speed:,.0f}" for engine, speed in speeds.items())
    told = f"samples a second: MLlib {mllib:,.0f}{others}"
    reason = "MLlib computes in float64, and evaluates its line search, too"
    return finding(not any(larger(speed, mllib) for speed in speeds.values()), told, reason)


@check
def torch_faster_than_tensorflow(seen: Evidence) -> ClaimFinding:
    speed = {
        engine: seen.of(engine=engine, train_rows=None).value(lambda record: record.samples_per_s, engine)
        for engine in ("torch", "tensorflow")
    }
    gain = speed["torch"] / speed["tensorflow"]
    told = f"torch {speed['torch']:,.0f} and tensorflow {speed['tensorflow']:,.0f} samples a second: {times_text(gain)}"
    reason = "a TensorFlow of today compiles the step, which that of the document did not"
    return finding(larger(gain, 1.0), told, "alike; " + reason if alike(*speed.values()) else reason)


@check
def one_machine_reaches_the_accuracy(seen: Evidence) -> ClaimFinding:
    good = [record for record in seen.good if record.mode == "single" and record.result and record.train_s]
    if not good:
        raise EvidenceMissing("no training on one machine ended well")
    best, theirs = (max(own, key=lambda record: record.result or 0.0) for own in (good, records("executors")))
    told = f"{best.engine} came to {quality(best.result)} in {seconds(best.train_s)} on one core"
    enough = (best.result or 0) > (theirs.result or 0) - WORTH and (best.train_s or 0.0) < DAY_S
    cores = count(round(theirs.workers * theirs.cores), "core")
    reason = (
        f"the best of the document's tables is {quality(theirs.result)}, after {seconds(theirs.train_s)} on {cores}"
    )
    return finding(not enough, told, reason)


ENGINE = "tf-on-spark"
MODES = ("sync", "async", "model-parallel")


def _ended(seen: Evidence) -> str:
    told = [f"{record.mode} {quality(record.result)}" for record in seen.good]
    return ", ".join(dict.fromkeys(told))


@check
def tf_on_spark_runs_in_every_mode(seen: Evidence) -> ClaimFinding:
    own = seen.of(engine=ENGINE)
    if not own.records:
        raise EvidenceMissing("no training on Spark ran")
    there = {record.mode for record in own.good}
    reason = "inference is every trial's test; tensorboard = true writes what TensorBoard shows"
    return finding(there >= set(MODES), _ended(own) or "no trial ended well", reason)


@check
def tf_on_spark_is_fed_both_ways(seen: Evidence) -> ClaimFinding:
    own = seen.of(study="systems", engine=ENGINE, workers=2)
    ways = own.by("feed")
    if len(ways) < 2:
        raise EvidenceMissing("not both feeds ran")
    told = {feed: seconds(part.good[0].train_s) if part.good else part.records[0].status for feed, part in ways.items()}
    words = f"pushed by Spark {told['spark']}, pulled by TensorFlow {told['tensorflow']}"
    reason = "stores that both can read are tested with local files and an S3 server"
    return finding(all(part.good for part in ways.values()), words, reason)


@check
def tf_on_spark_learns_like_tensorflow_and_beats_mllib(seen: Evidence) -> ClaimFinding:
    own = seen.of(study="systems")
    there = own.of(engine=ENGINE, workers=2, feed="tensorflow")
    alone, mllib = own.of(engine="tensorflow"), own.of(engine="spark-mllib")
    results = [one.result(name) for one, name in ((there, ENGINE), (alone, "tensorflow"), (mllib, "MLlib"))]
    told = f"{ENGINE} {quality(results[0])}, tensorflow {quality(results[1])}, MLlib {quality(results[2])}"
    exact = all(record.equivalence.get("verdict") == "exact" for record in there.good)
    slower = there.train_s(ENGINE) / alone.train_s("tensorflow")
    reason = f"the same arithmetic, checked; {times_text(slower)} the training time of tensorflow with the same cores"
    return finding(exact and results[0] > results[2], told, reason)


@check
def model_parallel_is_exact(seen: Evidence) -> ClaimFinding:
    own = seen.of(mode="model-parallel").good
    if not own:
        raise EvidenceMissing("no model-parallel training ended well")
    told = ", ".join(f"{record.equivalence['verdict']}, {quality(record.result)}" for record in own)
    return finding(all(record.equivalence["verdict"] == "exact" for record in own), told)


@check
def tf_on_spark_gains_with_nodes(seen: Evidence) -> ClaimFinding:
    own = seen.of(study="systems", engine=ENGINE, feed="tensorflow")
    one, two = (own.of(workers=workers).train_s(f"{workers} workers") for workers in (1, 2))
    told = f"two workers of one core each are {times_text(one / two)} as fast as one"
    return finding(larger(one, two), told, "alike" if alike(one, two) else "")


@check
def async_runs_on_spark(seen: Evidence) -> ClaimFinding:
    own = seen.of(engine=ENGINE, mode="async").good
    if not own:
        raise EvidenceMissing("no asynchronous training on Spark ended well")
    told = f"asynchronous training came to {quality(own[0].result)} on a Spark cluster"
    return finding(
        False, told, "by TensorFlow's servers on Spark's executors; Spark's own operations have no such mode"
    )
