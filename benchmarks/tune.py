"""The gain of tuning: each engine's best parameters against the shipped recipe, by the time to target.

    python benchmarks/tune.py [--minutes 40] [--engines numpy sklearn torch tensorflow jax] [--workload mnist-mlp]
                              [--target 0.97] [--candidates N] [--rounds 5] [--out DIR]

Every engine gets an equal part of the minutes. The gain is that of the race between the best candidate and the recipe,
on validation rows and new seeds, with its 95 % interval. At least four engines must be faster than with the recipe, or
have a recipe that is proven to be within 5 % of the best candidate. With --out the records are kept, and the same
command continues from them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from trainoff import engines, study
from trainoff.analysis.format import ratio_text, seconds
from trainoff.cli.tune import describe_step
from trainoff.runner.runner import RunObserver
from trainoff.tuning import EngineTuning, TuneOptions, TuneStep, tune

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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        named = ", ".join(f'"{engine}"' for engine in options.engines)
        path = Path(folder) / "tune.toml"
        path.write_text(f'workload = "{options.workload}"\nengines = [{named}]\n')
        tune_options = TuneOptions(options.minutes, options.target, options.candidates, options.rounds)
        read = study.read(path, engines.facts())
        result = tune(read, options.out or Path(folder), tune_options, report, RunObserver())
    print()
    for one in result.engines:
        print(gain_line(one))
    proven = [one.engine for one in result.engines if one.verdict in PROVEN]
    good = len(proven) >= min(LEAST, len(options.engines))
    print(f"\nproven for {len(proven)} engines, at least {LEAST} wanted: {'ok' if good else 'TOO FEW'}")
    return 0 if good else 1


def report(step: TuneStep) -> None:
    if step.record:
        print(describe_step(step), flush=True)


def gain_line(one: EngineTuning) -> str:
    """Return one line: how many times faster tuning made an engine, with the interval."""
    race = one.comparison
    if race is None or not race.n:
        return one.sentence
    best, recipe = (seconds(group.median(race.figure.value)) for group in (race.a, race.b))
    if race.ratio and race.low and race.high:
        low, high = ratio_text(1 / race.high), ratio_text(1 / race.low)
        gain = f"{ratio_text(1 / race.ratio)} times as fast ({low} to {high}, n = {race.n})"
    else:
        gain = f"reached in {race.reached[0]} of {race.n} runs, by the recipe in {race.reached[1]}"
    values = ", ".join(f"{key} {value}" for key, value in (one.challenger or {}).items())
    return f"{one.engine:<14} {race.figure.label}: {recipe} -> {best}, {gain}: {one.verdict}    {values}"


if __name__ == "__main__":
    sys.exit(main())
