"""Study files: keys, overrides, grids, workloads, and the trials that they expand to.

`read(path, installed)` returns a checked Study, `Study.trials()` the trials in the order they run.
"""

from trainoff.study.grid import MOST_TRIALS
from trainoff.study.keys import CLUSTER, LIMITS, PARAMS
from trainoff.study.loader import read
from trainoff.study.schema import EngineFacts, Installed
from trainoff.study.study import Limits, Study, Trial, derive
from trainoff.study.suggestions import nearest
from trainoff.study.workloads import Workload, workloads

__all__ = [
    "CLUSTER",
    "LIMITS",
    "MOST_TRIALS",
    "PARAMS",
    "EngineFacts",
    "Installed",
    "Limits",
    "Study",
    "Trial",
    "Workload",
    "derive",
    "nearest",
    "read",
    "workloads",
]
