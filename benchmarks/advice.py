"""The quality of advice: its probabilities on made-up studies, and its choices on configurations that were held out.

    python benchmarks/advice.py [DIR] [--target T] [--cold] [--studies N] [--only-read]

It advises on N (3,000) made-up studies with a known truth, and prints how often claims of each probability came true.
Then it reads the records in DIR, or runs the remaining trials of studies/advice.toml into results/advice (a quarter of
an hour): each number of nodes and rows is held out in turn, the choice among the engines that ran there is predicted
from the rest, and its measured time is compared with the best one. The aims: probabilities right to 3 %, intervals that
hold 95 % of the runs, and, of at least 8 configurations, all but one in eight within 10 % of the best.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from made_up import Score, calibration_error, reliability, score

from trainoff.analysis import SettingGroup, groups, newest
from trainoff.analysis.advice.candidates import AdviceFilter, Place, clock, find_candidates, place_of
from trainoff.analysis.advice.decide import AdviceLimits, choose_target, decide
from trainoff.analysis.format import seconds
from trainoff.records import Record, scan

STUDY = Path(__file__).parent.parent / "studies" / "advice.toml"
SEED = 11
RIGHT, LOW, HIGH = 0.03, 0.94, 0.985
NEAR_BEST = 0.1
FEWEST, IN_ALL = 7, 8  # 7 of 8 choices are to be near the best


@dataclass(frozen=True)
class Case:
    """A held-out number of nodes and rows: the advised engine and the best one."""

    place: Place
    chosen: str
    took: float
    best: str
    least: float
    considered: int
    inside: tuple[int, int]  # how many runs were inside their intervals, and of how many

    @property
    def worse(self) -> float:
        return self.took / self.least - 1


def main() -> int:
    """Run both checks; return 0 if both pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="records to check the choices by")
    parser.add_argument("--target", type=float, metavar="T", help="default: the headline target")
    parser.add_argument("--cold", action="store_true", help="by the time from cold")
    parser.add_argument("--studies", type=int, default=3000, metavar="N", help="made-up studies (3000)")
    parser.add_argument("--only-read", action="store_true", help="run nothing")
    options = parser.parse_args()
    calibrated = print_score(score(options.studies, SEED)) if options.studies else True
    if options.folder is None and not options.only_read:
        subprocess.run([sys.executable, "-m", "trainoff", "run", STUDY, "--out", "results"], check=False)
    records, _ = scan(options.folder or Path("results") / STUDY.stem)
    return 0 if print_cases(held_out(newest(records), options.target, options.cold)) and calibrated else 1


def print_score(found: Score) -> bool:
    """Print how often claims of each probability came true; return whether they are calibrated."""
    print(f"{len(found.chosen):,} made-up studies: claimed probability, and how often it came true (number of claims)")
    for name in ("best", "near_best", "kept"):
        pairs = getattr(found, name)
        bins = "  ".join(f"{one.claimed:.0%}: {one.came_true:.0%} ({one.number:,})" for one in reliability(pairs))
        print(f"  {name:9} off by {calibration_error(pairs):.1%} on average:  {bins}")
    claimed, true = (sum(values) / len(found.chosen) for values in zip(*found.chosen, strict=True))
    worse = sum(value for _, value in found.regret) / len(found.regret)
    print(
        f"  the choice was the best with a claimed probability of {claimed:.0%} and in {true:.0%} of studies; "
        f"it took {worse:.1%} more than the best"
    )
    print(f"  95 % intervals held {found.coverage:.1%} of the next runs\n")
    return calibration_error(found.best) < RIGHT and LOW < found.coverage < HIGH


def held_out(records: Sequence[Record], target: float | None, cold: bool) -> list[Case]:
    """Hold out every number of nodes and rows at which several engines reached the target, and return the cases."""
    wanted = choose_target(records, target)
    places = sorted({place_of(record) for record in records})
    return [case for place in places if (case := _case(records, place, wanted, cold))]


def _case(records: Sequence[Record], place: Place, target: float, cold: bool) -> Case | None:
    kept = [record for record in records if place_of(record) != place]
    measured = {_key(group.first): group for group in groups(records) if place_of(group.first) == place}
    took = {key: _median(group, target, cold) for key, group in measured.items()}
    reached = {key: value for key, value in took.items() if value is not None}
    if len(reached) < 2 or not kept:
        return None
    found = find_candidates(kept, target, AdviceFilter(nodes=place[0], rows=place[1]), cold)
    fields = [one for one in found.candidates if _key(one.record) in reached]
    if len(fields) < 2:
        return None
    choice = decide(replace(found, candidates=fields, never=[]), AdviceLimits()).choice.candidate
    best = min(reached, key=lambda key: reached[key])
    held = [
        one.seconds.low <= value <= one.seconds.high
        for one in fields
        for value in _values(measured[_key(one.record)], target, cold)
    ]
    return Case(
        place, choice.record.engine, reached[_key(choice.record)], measured[best].first.engine, reached[best],
        len(fields), (sum(held), len(held)),
    )  # fmt: skip


def _key(record: Record) -> tuple[str, str, float, str]:
    """Return what a prediction and a measurement have in common."""
    return record.engine, record.mode, record.cores, record.cluster


def _values(group: SettingGroup, target: float, cold: bool) -> list[float]:
    value = clock(target, group.first.metric, cold).value
    found = [value(record) for record in group.records]
    return [one for one in found if one is not None and one < float("inf")]


def _median(group: SettingGroup, target: float, cold: bool) -> float | None:
    values = _values(group, target, cold)
    return None if len(values) * 2 <= len(group.records) else statistics.median(values)


def print_cases(cases: Sequence[Case]) -> bool:
    """Print every choice beside the best that was measured; return whether enough were near it."""
    for case in cases:
        nodes, rows = case.place
        print(
            f"  nodes {nodes}, {rows:>7,.0f} rows, {case.considered} engines: advised {case.chosen:14} "
            f"{seconds(case.took):>7}; best {case.best:14} {seconds(case.least):>7}; {case.worse:+.0%} "
            f"({case.inside[0]} of {case.inside[1]} runs inside their intervals)"
        )
    good = sum(case.worse <= NEAR_BEST for case in cases)
    held = [sum(case.inside[place] for case in cases) for place in (0, 1)]
    print(f"{good} of {len(cases)} held-out choices were within {NEAR_BEST:.0%} of the best measured there")
    print(f"{held[0]} of {held[1]} held-out runs were inside the intervals that were predicted for them")
    return len(cases) >= IN_ALL and good * IN_ALL >= FEWEST * len(cases)


if __name__ == "__main__":
    sys.exit(main())
