"""Claims about synchronous and asynchronous training (001, 003), and about what follows when a worker dies (001)."""

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
    times_text,
)

SYNC, ASYNC = "sync", "async"
CONTENDED = 1.0  # processes that wait or run, for each CPU
HALF = 0.5


def modes(seen: Evidence, **wanted: object) -> tuple[Evidence, Evidence]:
    """The undisturbed trainings of the click log, synchronous and asynchronous, with the most workers."""
    own = seen.of(study="agreement", **wanted).calm
    most = max((record.workers for record in own.records), default=0)
    return own.of(mode=SYNC, workers=most), own.of(mode=ASYNC, workers=most)


def _both(seen: Evidence, figure: RecordValue, what: str) -> tuple[float, float]:
    sync, asynchronous = modes(seen)
    return sync.value(figure, f"{what} in sync"), asynchronous.value(figure, f"{what} in async")


def _of_training(name: str) -> RecordValue:
    return lambda record: record.training.get(name)


def _load(record: Record) -> float | None:
    """Processes of this trial that ran or waited to, for each CPU that they had."""
    runnable, cpus = record.training.get("runnable"), record.isolation.get("cpus")
    return runnable / len(cpus) if runnable is not None and cpus else None


@check
def cpu_contended_in_sync(seen: Evidence) -> ClaimFinding:
    sync, _ = _both(seen, _load, "the load")
    return finding(sync > CONTENDED, f"{sync:.1f} processes ran or waited for each CPU")


@check
def cpu_contended_in_async(seen: Evidence) -> ClaimFinding:
    _, asynchronous = _both(seen, _load, "the load")
    return finding(asynchronous > CONTENDED, f"{asynchronous:.1f} processes ran or waited for each CPU")


@check
def load_higher_in_async(seen: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(seen, _load, "the load")
    return finding(larger(asynchronous, sync), f"{sync:.1f} in sync, {asynchronous:.1f} in async for each CPU")


@check
def memory_holds_nobody_up(seen: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(seen, _of_training("memory_share"), "the memory")
    told = f"{percent(round(sync, 3))} of the machine's in sync, {percent(round(asynchronous, 3))} in async"
    return finding(max(sync, asynchronous) < HALF, told)


@check
def memory_higher_in_sync(seen: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(seen, lambda record: record.peak_memory_bytes, "the memory")
    return finding(larger(sync, asynchronous), f"{size(sync)} in sync, {size(asynchronous)} in async")


@check
def cpu_busier_in_sync(seen: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(seen, _of_training("cpu_share"), "the share of the CPUs")
    told = f"CPUs {100 * sync:.0f} % busy in sync, {100 * asynchronous:.0f} % in async"
    return finding(larger(sync, asynchronous), told, "who waits for others uses no CPU: async has nobody to wait for")


@check
def network_busier_in_async(seen: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(seen, _of_training("network_bytes_per_s"), "the network")
    told = f"{size(sync)}/s in sync, {size(asynchronous)}/s in async: {times_text(asynchronous / sync)}"
    return finding(larger(asynchronous, sync), told)


@check
def error_decreases_in_both_modes(seen: Evidence) -> ClaimFinding:
    told, fell = [], []
    for own in modes(seen):
        record = next(iter(own.good), None)
        if record is None or record.result is None:
            raise EvidenceMissing("not both modes ended well")
        reached = [float(target) for target, took in record.time_to_target.items() if took is not None]
        fell.append(bool(reached))
        told.append(f"{record.mode} to {percent(round(record.result, 4))} error")
    return finding(
        all(fell), ", ".join(told), "every snapshot is evaluated; a target counts if the error stays below it"
    )


@check
def async_starts_worse_and_falls_faster(seen: Evidence) -> ClaimFinding:
    """Whether async is later than sync at an easy target although it makes its steps sooner."""
    sync, asynchronous = modes(seen)
    easy = max((target for record in sync.good for target in record.targets), default=None)
    if easy is None:
        raise EvidenceMissing("not both modes ended well")
    slow, quick = (
        own.value(lambda record: record.time_to_target.get(str(easy)), f"the time to {easy}")
        for own in (sync, asynchronous)
    )
    told = f"to {percent(easy)} error: sync {seconds(slow)}, async {seconds(quick)}"
    return finding(larger(quick, slow), told, "with the same initial weights both modes start from the same error")


def _slowed(seen: Evidence, mode: str) -> tuple[float, float]:
    """Training time with a straggler and without, with two workers."""
    own = seen.of(study="agreement", mode=mode, workers=2)
    slow = own.where(lambda record: bool(record.fault))
    return slow.train_s(f"{mode} with a straggler"), own.calm.train_s(f"{mode} without one")


@check
def sync_waits_for_the_slow_worker(seen: Evidence) -> ClaimFinding:
    slowed, calm = _slowed(seen, SYNC)
    other = _waited(seen)
    told = (
        f"{times_text(slowed / calm)} as long with one worker at a quarter of its speed; the other waited {other:.0f} %"
    )
    return finding(larger(slowed, calm), told)


def _waited(seen: Evidence) -> float:
    """The share of the training, in per cent, that the unhindered worker waited."""
    own = seen.of(study="agreement", mode=SYNC, workers=2).where(lambda record: bool(record.fault))
    share = own.value(
        lambda record: record.breakdowns["waiting_s"]["worker-0"] / (record.train_s or 1.0), "the waiting in sync"
    )
    return 100 * share


@check
def async_does_not_wait_for_the_slow_worker(seen: Evidence) -> ClaimFinding:
    own = seen.of(study="agreement", mode=ASYNC, workers=2).where(lambda record: bool(record.fault))
    shares = [done.waiting for record in own.good if (done := worker_times(record))]
    if not shares:
        raise EvidenceMissing("async with a straggler did not end well")
    slowed, calm = _slowed(seen, ASYNC)
    sync = _slowed(seen, SYNC)
    told = f"{times_text(slowed / calm)} as long with a straggler, where sync took {times_text(sync[0] / sync[1])}"
    return finding(
        larger(sync[0] / sync[1], slowed / calm), told, f"its workers waited {percent(round(max(shares), 2))}"
    )


def _killed(seen: Evidence, engine: str) -> FaultEffect:
    """What became of the training of an engine when a worker was killed."""
    for one in fault_effects(groups(seen.of(study="recovery", engine=engine).records)):
        return one
    raise EvidenceMissing(f"no worker of {engine} was killed")


def _told(one: FaultEffect) -> str:
    engine, again = one.group.first.engine, int(one.samples_redone or 0)
    noticed, back = seconds(one.detected_s), seconds(one.recovered_s)
    return f"{engine} {one.state}: noticed after {noticed}, back after {back}, {again:,} samples again"


@check
def spark_recovers_from_a_killed_worker(seen: Evidence) -> ClaimFinding:
    one = _killed(seen, "spark-average")
    return finding(one.state == "recovered", _told(one))


@check
def tensorflow_goes_back_to_a_checkpoint(seen: Evidence) -> ClaimFinding:
    one = _killed(seen, "tf-allreduce")
    restarts = int(one.group.first.counts.get("restarts", 0))
    reason = f"all workers were started again {restarts} times, and went on from the last checkpoint"
    return finding(one.state == "recovered" and restarts > 0, _told(one), reason.replace(" 1 times", ""))
