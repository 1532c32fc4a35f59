"""The accuracy of scaling models: fitted on 1, 2, 4 and 8 nodes of a lab, they predict 17, which are measured, too.

    python benchmarks/scaling.py [--engine E]... [--out DIR] [--only-read]

It runs the remaining trials of studies/scaling.toml into DIR (results), fits the training time of every engine without
its runs on 17 nodes, and prints the prediction and the measurement. The aim is an error of at most 20 % for at least
three engines. Takes about three quarters of an hour; with --only-read it only reads records.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from trainoff.analysis.format import seconds, span
from trainoff.analysis.scaling.curves import Curve, curves
from trainoff.analysis.scaling.model import fit, graded
from trainoff.analysis.scaling.text import formula_text
from trainoff.records import scan

STUDY = Path(__file__).parent.parent / "studies" / "scaling.toml"
HELD_OUT = 17
AIM = 0.2
FEWEST = 3


def main() -> int:
    """Run, fit, predict and compare; return 0 if enough engines were predicted well enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", default=[], metavar="E", help="only this one; may be given again")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where results go (results)")
    parser.add_argument("--only-read", action="store_true", help="run nothing")
    options = parser.parse_args()
    if not options.only_read:
        chosen = [argument for engine in options.engine for argument in ("--engine", engine)]
        subprocess.run([sys.executable, "-m", "trainoff", "run", STUDY, "--out", options.out, *chosen], check=False)
    records, _ = scan(options.out / "scaling")
    wanted = [one for one in curves(records) if not options.engine or one.engine in options.engine]
    errors = [error for one in wanted if (error := compare(one)) is not None]
    good = sum(abs(error) <= AIM for error in errors)
    print(f"{good} of {len(errors)} engines were predicted within {AIM:.0%} at {HELD_OUT} nodes")
    return 0 if good >= FEWEST else 1


def compare(curve: Curve) -> float | None:
    """Print the prediction and the measurement; return the error, or None if either is missing."""
    known, unseen = curve.split([HELD_OUT])
    if len({config.nodes for config in known}) < 2 or not unseen:
        print(f"{curve.name}: measured with {curve.counts} nodes only ({len(curve.censored)} failed)")
        return None
    model = graded(fit(known), unseen)
    (error,) = model.grade.held_out.values()
    one = model.predict(HELD_OUT)
    inside = "inside" if one.low <= unseen[0].seconds <= one.high else "outside"
    left_out = ", ".join(f"{nodes}: {value:+.0%}" for nodes, value in model.grade.left_out.items())
    print(f"{curve.name}: {formula_text(model)}, from {model.counts} nodes (off by {left_out or 'an unknown error'})")
    print(
        f"    {HELD_OUT} nodes: predicted {seconds(one.middle)} ({span(one.low, one.high)}), measured "
        f"{seconds(unseen[0].seconds)}, {inside} the interval: {error:+.1%}"
    )
    return error


if __name__ == "__main__":
    sys.exit(main())
