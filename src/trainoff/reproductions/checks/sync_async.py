"""Claims about synchronous and asynchronous training, the batch size, and recovery from a killed worker (001, 003)."""

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
    alike,
    check,
    finding,
    larger,
    require,
    rows_of_a_worker,
    times_text,
)

MODES = SYNC, ASYNC = "sync", "async"
CONTENDED = 1.0  # processes that wait or run, for each CPU
HALF = 0.5
NOT_BOTH = "not both modes ended well"
WORKLOAD = "mnist-mlp"  # dense rows, since the document does not name its data; the other workload is a click log


def _modes(evidence: Evidence) -> tuple[Evidence, Evidence]:
    """Return the synchronous and asynchronous trainings without faults that have the most workers."""
    runs = evidence.select(study="agreement").without_faults
    most = max((record.workers for record in runs.records), default=0)
    return runs.select(mode=SYNC, workers=most), runs.select(mode=ASYNC, workers=most)


def _both(evidence: Evidence, figure: RecordValue, what: str) -> tuple[float, float]:
    sync, asynchronous = _modes(evidence)
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
    reason = "a waiting worker uses no CPU, and workers in async do not wait for others"
    return finding(larger(sync, asynchronous), text, reason)


@check
def network_busier_in_async(evidence: Evidence) -> ClaimFinding:
    sync, asynchronous = _both(evidence, _of_training("network_bytes_per_s"), "the network")
    text = f"{size(sync)}/s in sync, {size(asynchronous)}/s in async: {times_text(asynchronous / sync)}"
    return finding(larger(asynchronous, sync), text)


@check
def error_decreases_in_both_modes(evidence: Evidence) -> ClaimFinding:
    texts, fell = [], []
    for runs in _modes(evidence):
        record = next(iter(runs.good), None)
        if record is None or record.result is None:
            raise EvidenceMissing(NOT_BOTH)
        fell.append(any(took is not None for took in record.time_to_target.values()))
        texts.append(f"{record.mode} to {percent(round(record.result, 4))} error")
    reason = "every snapshot is evaluated; a target counts if the error stays below it"
    return finding(all(fell), ", ".join(texts), reason)


@check
def async_starts_worse_and_falls_faster(evidence: Evidence) -> ClaimFinding:
    """async must be later than sync at an easy target, although it makes its steps sooner."""
    modes = _modes(evidence)
    targets = [target for record in modes[0].good for target in record.targets]
    require(targets, NOT_BOTH)
    easy = max(targets)
    slow, quick = (runs.value(lambda one: one.time_to_target.get(str(easy)), f"the time to {easy}") for runs in modes)
    text = f"to {percent(easy)} error: sync {seconds(slow)}, async {seconds(quick)}"
    return finding(larger(quick, slow), text, "with the same initial weights both modes start from the same error")


def _two_workers(evidence: Evidence, mode: str) -> Evidence:
    return evidence.select(study="agreement", mode=mode, workers=2)


def _slowdown(evidence: Evidence, mode: str) -> float:
    """Return the training time of two workers with a straggler as a multiple of that without."""
    runs = _two_workers(evidence, mode)
    slowed = runs.with_faults.train_s(f"{mode} with a straggler")
    return slowed / runs.without_faults.train_s(f"{mode} without one")


@check
def sync_waits_for_the_slow_worker(evidence: Evidence) -> ClaimFinding:
    slowdown = _slowdown(evidence, SYNC)
    waited = _two_workers(evidence, SYNC).with_faults.value(
        lambda record: record.breakdowns["waiting_s"]["worker-0"] / (record.train_s or 1.0), "the waiting in sync"
    )
    longer = f"{times_text(slowdown)} as long with one worker at a quarter of its speed"
    return finding(larger(slowdown, 1.0), f"{longer}; the other waited {100 * waited:.0f} %")


@check
def async_does_not_wait_for_the_slow_worker(evidence: Evidence) -> ClaimFinding:
    runs = _two_workers(evidence, ASYNC).with_faults.good
    shares = [times.waiting for record in runs if (times := worker_times(record))]
    require(shares, "async with a straggler did not end well")
    slowdown, sync = _slowdown(evidence, ASYNC), _slowdown(evidence, SYNC)
    text = f"{times_text(slowdown)} as long with a straggler, where sync took {times_text(sync)}"
    return finding(larger(sync, slowdown), text, f"its workers waited {percent(round(max(shares), 2))}")


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


def _by_batch(evidence: Evidence, mode: str, workload: str = WORKLOAD) -> dict[int, float]:
    """Return the training time by the rows that a worker takes at a time; in sync, workers share a batch."""
    times: dict[int, float] = {}
    for part in evidence.select(workload=workload, mode=mode).group_by("batch_size").values():
        if part.good:
            times[rows_of_a_worker(part.good[0])] = part.train_s(f"{workload} {mode}")
    require(len(times) >= 2, f"fewer than two sizes of batches ended well in {mode}")
    return dict(sorted(times.items()))


def _times_text(mode: str, times: dict[int, float]) -> str:
    return f"{mode} " + ", ".join(f"{batch:,}: {seconds(took)}" for batch, took in times.items())


@check
def async_steps_more_often(evidence: Evidence) -> ClaimFinding:
    def steps_per_s(record: Record) -> float | None:
        return record.steps / record.train_s if record.steps and record.train_s else None

    single_rows = evidence.select(workload=WORKLOAD).filter(lambda record: rows_of_a_worker(record) == 1)
    slow, quick = (single_rows.select(mode=mode).value(steps_per_s, f"{mode} steps") for mode in MODES)
    text = f"{slow:,.0f} updates a second in sync, {quick:,.0f} in async: {times_text(quick / slow)}"
    return finding(larger(quick, slow), text, "single rows, two workers")


@check
def batches_faster_than_single_rows(evidence: Evidence) -> ClaimFinding:
    times_by_mode = {mode: _by_batch(evidence, mode) for mode in MODES}
    gains = {mode: times[1] / times[100] for mode, times in times_by_mode.items() if 1 in times and 100 in times}
    require(gains, "single rows or batches of 100 did not end well")
    text = ", ".join(f"{times_text(gain)} faster in {mode}" for mode, gain in gains.items())
    reason = "here every size sees the same samples; the document counts iterations, whatever they hold"
    faster = all(larger(gain, 1.0) for gain in gains.values())
    return finding(faster, f"from single rows to batches of 100: {text}", reason)


@check
def larger_batches_bring_less_and_less(evidence: Evidence) -> ClaimFinding:
    texts, less = [], []
    for mode in MODES:
        times = _by_batch(evidence, mode)
        require({1, 100, 1000} <= set(times), f"not all sizes of batches ended well in {mode}")
        less.append(times[1] / times[100] > times[100] / times[max(times)])
        texts.append(_times_text(mode, times))
    return finding(all(less), "; ".join(texts), "the step from 1 to 100 brings more than that from 100 to the largest")


@check
def sync_fastest_with_the_largest_batch(evidence: Evidence) -> ClaimFinding:
    times = _by_batch(evidence, "sync")
    return finding(times[max(times)] <= min(times.values()), _times_text("sync", times))


@check
def async_fastest_with_a_thousand(evidence: Evidence) -> ClaimFinding:
    times = _by_batch(evidence, "async")
    best = min(times, key=times.__getitem__)
    similar = best != 1000 and 1000 in times and alike(times[1000], times[best])
    return finding(best == 1000, _times_text("async", times), "alike with a thousand" if similar else "")


@check
def best_batch_differs_between_workloads(evidence: Evidence) -> ClaimFinding:
    best: dict[tuple[str, str], int] = {}
    for workload in evidence.group_by("workload"):
        for mode in MODES:
            times = _by_batch(evidence, mode, workload)
            best[workload, mode] = min(times, key=times.__getitem__)
    require(best, "no size of batches ended well")
    text = ", ".join(f"{workload} {mode} {batch:,}" for (workload, mode), batch in best.items())
    return finding(len(set(best.values())) > 1, f"fastest: {text}")
