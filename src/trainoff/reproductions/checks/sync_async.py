"""Claims about synchronous and asynchronous training (001, 003), and about recovery from a killed worker (001)."""

from __future__ import annotations

from trainoff.analysis.bottleneck import worker_times
from trainoff.analysis.faults import FaultEffect, fault_effects
from trainoff.analysis.format import percent, seconds, size
from trainoff.analysis.groups import groups
from trainoff.records import Record
from trainoff.reproductions.evidence import (
    ClaimFinding,
    Evidence,
    EvidenceMissing,
    RecordValue,
    check,
    finding,
    larger,
    require,
    times_text,
)

SYNC, ASYNC = "sync", "async"
CONTENDED = 1.0  # processes that wait or run, for each CPU
HALF = 0.5


def modes(evidence: Evidence, **wanted: object) -> tuple[Evidence, Evidence]:
    """Return the synchronous and asynchronous trainings without faults that have the most workers."""
    runs = evidence.select(study="agreement", **wanted).without_faults
    most = max((record.workers for record in runs.records), default=0)
    return runs.select(mode=SYNC, workers=most), runs.select(mode=ASYNC, workers=most)


def _both(evidence: Evidence, figure: RecordValue, what: str) -> tuple[float, float]:
    sync, asynchronous = modes(evidence)
    return sync.value(figure, f"{what} in sync"), asynchronous.value(figure, f"{what} in async")


def _of_training(name: str) -> RecordValue:
    return lambda record: record.training.get(name)


def _load(record: Record) -> float | None:
    """Return how many processes of this trial ran or waited to, for each of its CPUs."""
    runnable, cpus = record.training.get("runnable"), record.isolation.get("cpus")
    return runnable / len(cpus) if runnable is not None and cpus else None


@check
def cpu_contended_in_sync(evidence: Evidence) -> ClaimFinding:
    sync, _ = _both(evidence, _load, "the load")
    return finding(sync > CONTENDED, f"{sync:.1f} processes ran or waited for each CPU")


@check
def cpu_contended_in_async(evidence: Evidence) -> ClaimFinding:
    _, asynchronous = _both(evidence, _load, "the load")
    return finding(asynchronous > CONTENDED, f"{asynchronous:.1f} processes ran or waited for each CPU")


@check
def load_higher_in_async(evidence: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(evidence, _load, "the load")
    return finding(larger(asynchronous, sync), f"{sync:.1f} in sync, {asynchronous:.1f} in async for each CPU")


@check
def memory_is_no_bottleneck(evidence: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(evidence, _of_training("memory_share"), "the memory")
    text = f"{percent(round(sync, 3))} of the machine's in sync, {percent(round(asynchronous, 3))} in async"
    return finding(max(sync, asynchronous) < HALF, text)


@check
def memory_higher_in_sync(evidence: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(evidence, lambda record: record.peak_memory_bytes, "the memory")
    return finding(larger(sync, asynchronous), f"{size(sync)} in sync, {size(asynchronous)} in async")


@check
def cpu_busier_in_sync(evidence: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(evidence, _of_training("cpu_share"), "the share of the CPUs")
    text = f"CPUs {100 * sync:.0f} % busy in sync, {100 * asynchronous:.0f} % in async"
    return finding(
        larger(sync, asynchronous), text, "a waiting worker uses no CPU, and workers in async do not wait for others"
    )


@check
def network_busier_in_async(evidence: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(evidence, _of_training("network_bytes_per_s"), "the network")
    text = f"{size(sync)}/s in sync, {size(asynchronous)}/s in async: {times_text(asynchronous / sync)}"
    return finding(larger(asynchronous, sync), text)


@check
def error_decreases_in_both_modes(evidence: Evidence) -> ClaimFinding:
    texts, fell = [], []
    for runs in modes(evidence):
        record = next(iter(runs.good), None)
        if record is None or record.result is None:
            raise EvidenceMissing("not both modes ended well")
        reached = [float(target) for target, took in record.time_to_target.items() if took is not None]
        fell.append(bool(reached))
        texts.append(f"{record.mode} to {percent(round(record.result, 4))} error")
    return finding(
        all(fell), ", ".join(texts), "every snapshot is evaluated; a target counts if the error stays below it"
    )


@check
def async_starts_worse_and_falls_faster(evidence: Evidence) -> ClaimFinding:
    """async must be later than sync at an easy target, although it makes its steps sooner."""
    sync, asynchronous = modes(evidence)
    easy = max((target for record in sync.good for target in record.targets), default=None)
    if easy is None:
        raise EvidenceMissing("not both modes ended well")
    slow, quick = (
        runs.value(lambda record: record.time_to_target.get(str(easy)), f"the time to {easy}")
        for runs in (sync, asynchronous)
    )
    text = f"to {percent(easy)} error: sync {seconds(slow)}, async {seconds(quick)}"
    return finding(larger(quick, slow), text, "with the same initial weights both modes start from the same error")


def _slowed(evidence: Evidence, mode: str) -> tuple[float, float]:
    """Return the training time of two workers with a straggler, and without."""
    runs = evidence.select(study="agreement", mode=mode, workers=2)
    slow = runs.filter(lambda record: bool(record.fault))
    return slow.train_s(f"{mode} with a straggler"), runs.without_faults.train_s(f"{mode} without one")


@check
def sync_waits_for_the_slow_worker(evidence: Evidence) -> ClaimFinding:
    slowed, calm = _slowed(evidence, SYNC)
    runs = evidence.select(study="agreement", mode=SYNC, workers=2).filter(lambda record: bool(record.fault))
    waited = runs.value(
        lambda record: record.breakdowns["waiting_s"]["worker-0"] / (record.train_s or 1.0), "the waiting in sync"
    )
    longer = f"{times_text(slowed / calm)} as long with one worker at a quarter of its speed"
    return finding(larger(slowed, calm), f"{longer}; the other waited {100 * waited:.0f} %")


@check
def async_does_not_wait_for_the_slow_worker(evidence: Evidence) -> ClaimFinding:
    runs = evidence.select(study="agreement", mode=ASYNC, workers=2).filter(lambda record: bool(record.fault))
    shares = [times.waiting for record in runs.good if (times := worker_times(record))]
    require(shares, "async with a straggler did not end well")
    slowed, calm = _slowed(evidence, ASYNC)
    sync = _slowed(evidence, SYNC)
    text = f"{times_text(slowed / calm)} as long with a straggler, where sync took {times_text(sync[0] / sync[1])}"
    return finding(
        larger(sync[0] / sync[1], slowed / calm), text, f"its workers waited {percent(round(max(shares), 2))}"
    )


def _killed(evidence: Evidence, engine: str) -> FaultEffect:
    effects = fault_effects(groups(evidence.select(study="recovery", engine=engine).records))
    require(effects, f"no worker of {engine} was killed")
    return effects[0]


def _effect_text(effect: FaultEffect) -> str:
    engine, repeated = effect.group.first.engine, int(effect.samples_redone or 0)
    noticed, back = seconds(effect.detected_s), seconds(effect.recovered_s)
    return f"{engine} {effect.state}: noticed after {noticed}, back after {back}, {repeated:,} samples repeated"


@check
def spark_recovers_from_a_killed_worker(evidence: Evidence) -> ClaimFinding:
    effect = _killed(evidence, "spark-average")
    return finding(effect.state == "recovered", _effect_text(effect))


@check
def tensorflow_goes_back_to_a_checkpoint(evidence: Evidence) -> ClaimFinding:
    effect = _killed(evidence, "tf-allreduce")
    restarts = int(effect.group.first.counts.get("restarts", 0))
    reason = f"all workers were restarted{f' {restarts} times' if restarts > 1 else ''} from the last checkpoint"
    return finding(effect.state == "recovered" and restarts > 0, _effect_text(effect), reason)
