"""Each engine at its best: its own parameters are searched for the shortest time to target, on validation rows.

`tune(study, out, wish, say, view)` does it, `write(...)` puts the winners into a study file; docs/tuning.md tells how.
"""

from trainoff.tune.outcome import Tuned, Tuning
from trainoff.tune.tuner import check, get_rows, tune
from trainoff.tune.wish import Step, Wish
from trainoff.tune.written import default_place, write

__all__ = ["Step", "Tuned", "Tuning", "Wish", "check", "default_place", "get_rows", "tune", "write"]
