"""What tuning brings: each engine's best parameters against the shipped recipe, by the time to target.

    python benchmarks/tune.py [--minutes 40] [--engines numpy sklearn torch tensorflow jax] [--workload mnist-mlp]
                              [--target 0.97] [--candidates N] [--rounds 5] [--out DIR]

Every engine gets an equal part of the minutes. The gain is that of the race between the best candidate and the recipe,
on validation rows and fresh seeds, with its 95 % interval. At least four engines must be faster than by the recipe, or
have a recipe that is proven to be within 5 % of the best that was found. With --out the records stay, and the same
command goes on from them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from trainoff import engines, study
from trainoff.analysis.format import ratio_text, seconds
from trainoff.cli.tune import line
from trainoff.runner.runner import NullObserver
from trainoff.tuning import Tuned, TuneOptions, TuneStep, tune

LEAST = 4
PROVEN = ("faster", "within 5%")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--engines", nargs="+", default=["numpy", "sklearn", "torch", "tensorflow", "jax"])
    parser.add_argument("--workload", default="mnist-mlp")
    parser.add_argument("--target", type=float)
    parser.add_argument("--candidates", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        named = ", ".join(f'"{engine}"' for engine in asked.engines)
        path = Path(folder) / "tune.toml"
        path.write_text(f'workload = "{asked.workload}"\nengines = [{named}]\n')
        wish = TuneOptions(asked.minutes, asked.target, asked.candidates, asked.rounds)
        read = study.read(path, engines.facts())
        found = tune(read, asked.out or Path(folder), wish, tell, NullObserver())
    print()
    for one in found.engines:
        print(gain(one))
    proven = [one.engine for one in found.engines if one.verdict in PROVEN]
    good = len(proven) >= min(LEAST, len(asked.engines))
    print(f"\nproven for {len(proven)} engines, at least {LEAST} wanted: {'ok' if good else 'TOO FEW'}")
    return 0 if good else 1


def tell(step: TuneStep) -> None:
    if step.record:
        print(line(step), flush=True)


def gain(one: Tuned) -> str:
    """What tuning brought an engine, in a line: how many times faster, with the interval."""
    race = one.comparison
    if race is None or not race.n:
        return one.sentence
    best, recipe = (seconds(group.median(race.figure.value)) for group in (race.a, race.b))
    if race.ratio and race.low and race.high:
        low, high = ratio_text(1 / race.high), ratio_text(1 / race.low)
        told = f"{ratio_text(1 / race.ratio)} times as fast ({low} to {high}, n = {race.n})"
    else:
        told = f"reached in {race.reached[0]} of {race.n} runs, by the recipe in {race.reached[1]}"
    values = ", ".join(f"{key} {value}" for key, value in (one.challenger or {}).items())
    return f"{one.engine:<14} {race.figure.label}: {recipe} -> {best}, {told}: {one.verdict}    {values}"


if __name__ == "__main__":
    sys.exit(main())
