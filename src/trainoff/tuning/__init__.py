"""Each engine at its best: its own parameters are searched for the shortest time to target, on validation rows.

`tune(study, out, options, say, view)` searches, `write(...)` puts the winners into a study file; see docs/tuning.md.
"""

from trainoff.tuning.outcome import Tuned, Tuning
from trainoff.tuning.tuned_study import default_place, write
from trainoff.tuning.tuner import TuneOptions, TuneStep, check, get_rows, tune

__all__ = ["TuneOptions", "TuneStep", "Tuned", "Tuning", "check", "default_place", "get_rows", "tune", "write"]
