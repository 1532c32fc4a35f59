"""Claims about the batch size (003): time for the same samples, synchronous and asynchronous."""

from __future__ import annotations

from trainoff.analysis.format import seconds
from trainoff.records import Record
from trainoff.reproductions.evidence import (
    ClaimFinding,
    Evidence,
    alike,
    check,
    finding,
    larger,
    require,
    rows_of_a_worker,
    times_text,
)

WORKLOAD = "mnist-mlp"  # dense rows, since the document does not name its data; the other workload is a click log
MODES = ("sync", "async")


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
