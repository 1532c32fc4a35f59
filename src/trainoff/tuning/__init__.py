"""Search each engine's own parameters for the shortest time to target, on validation rows.

`tune(study, out, options, report, observer)` searches, `write(...)` puts the winners into a study file. See
docs/tuning.md.
"""

from trainoff.tuning.results import EngineTuning, TuningResult
from trainoff.tuning.tuned_study import default_path, write
from trainoff.tuning.tuner import TuneOptions, TuneStep, check, prepare_data, tune

__all__ = [
    "EngineTuning",
    "TuneOptions",
    "TuneStep",
    "TuningResult",
    "check",
    "default_path",
    "prepare_data",
    "tune",
    "write",
]
