"""Claims about the size of batches (003): time for the same samples, synchronous and asynchronous."""

from __future__ import annotations

from trainoff.analysis.format import seconds
from trainoff.records import Record
from trainoff.reproductions.evidence import (
    ClaimFinding,
    Evidence,
    EvidenceMissing,
    alike,
    check,
    finding,
    larger,
    rows_of_a_worker,
    times_text,
)

LIKE = "mnist-mlp"  # dense rows, as the document's data is not named; the click log is beside it
MODES = ("sync", "async")


def single(record: Record) -> bool:
    """Whether a worker takes one row at a time."""
    return rows_of_a_worker(record) == 1


def by_batch(seen: Evidence, mode: str, workload: str = LIKE) -> dict[int, float]:
    """Training time by the rows a worker takes at a time. In sync, the largest batches are shared."""
    times: dict[int, float] = {}
    for part in seen.of(workload=workload, mode=mode).by("batch_size").values():
        if part.good:
            times[rows_of_a_worker(part.good[0])] = part.train_s(f"{workload} {mode}")
    if len(times) < 2:
        raise EvidenceMissing(f"fewer than two sizes of batches ended well in {mode}")
    return dict(sorted(times.items()))


def _told(mode: str, own: dict[int, float]) -> str:
    return f"{mode} " + ", ".join(f"{batch:,}: {seconds(took)}" for batch, took in own.items())


@check
def async_steps_more_often(seen: Evidence) -> ClaimFinding:
    steps = {
        mode: seen.of(workload=LIKE, mode=mode)
        .where(single)
        .value(
            lambda record: record.steps / record.train_s if record.steps and record.train_s else None, f"{mode} steps"
        )
        for mode in MODES
    }
    slow, quick = (steps[mode] for mode in MODES)
    told = f"{slow:,.0f} updates a second in sync, {quick:,.0f} in async: {times_text(quick / slow)}"
    return finding(larger(quick, slow), told, "single rows, two workers")


@check
def batches_faster_than_single_rows(seen: Evidence) -> ClaimFinding:
    gains = {mode: own[1] / own[100] for mode in MODES for own in [by_batch(seen, mode)] if 1 in own and 100 in own}
    if not gains:
        raise EvidenceMissing("single rows or batches of 100 did not end well")
    told = ", ".join(f"{times_text(gain)} faster in {mode}" for mode, gain in gains.items())
    reason = "here every size sees the same samples; the document counts iterations, whatever they hold"
    faster = all(larger(gain, 1.0) for gain in gains.values())
    return finding(faster, f"from single rows to batches of 100: {told}", reason)


@check
def larger_batches_bring_less_and_less(seen: Evidence) -> ClaimFinding:
    told, less = [], []
    for mode in MODES:
        own = by_batch(seen, mode)
        if not {1, 100, 1000} <= set(own):
            raise EvidenceMissing(f"not all sizes of batches ended well in {mode}")
        less.append(own[1] / own[100] > own[100] / own[max(own)])
        told.append(_told(mode, own))
    return finding(all(less), "; ".join(told), "the step from 1 to 100 brings more than that from 100 to the largest")


@check
def sync_fastest_with_the_largest_batch(seen: Evidence) -> ClaimFinding:
    own = by_batch(seen, "sync")
    return finding(own[max(own)] <= min(own.values()), _told("sync", own))


@check
def async_fastest_with_a_thousand(seen: Evidence) -> ClaimFinding:
    own = by_batch(seen, "async")
    best = min(own, key=own.__getitem__)
    near = 1000 in own and alike(own[1000], own[best])
    return finding(best == 1000, _told("async", own), "alike with a thousand" if near and best != 1000 else "")


@check
def best_batch_differs_between_workloads(seen: Evidence) -> ClaimFinding:
    best: dict[tuple[str, str], int] = {}
    for workload in seen.by("workload"):
        for mode in MODES:
            own = by_batch(seen, mode, workload)
            best[workload, mode] = min(own, key=own.__getitem__)
    if not best:
        raise EvidenceMissing("no size of batches ended well")
    told = ", ".join(f"{workload} {mode} {batch:,}" for (workload, mode), batch in best.items())
    return finding(len(set(best.values())) > 1, f"fastest: {told}")
