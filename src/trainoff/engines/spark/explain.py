"""What Spark says of a failure, in the failing task's own words or in one sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from trainoff.engines.contract import WorkerFailed
from trainoff.errors import TrainoffError

PYTHON = "spark.pyspark.python"
NAME_IT = f'name theirs in [cluster.spark]: "{PYTHON}" = "/path/to/python"'


def explain(text: str, log_of: Callable[[str], str]) -> Exception:
    """The error to raise instead of Spark's; `log_of` gives the end of an executor's log by its number."""
    if "PYTHON_VERSION_MISMATCH" in text:
        return TrainoffError(f"the executors run another Python than this machine; {NAME_IT}")
    if "Cannot run program" in text:
        return TrainoffError(f"the executors have no Python at {os.environ['PYSPARK_PYTHON']}; {NAME_IT}")
    executor = re.search(r"\(\S+ executor (\d+)\)", text)
    traceback = re.search(r"Traceback \(most recent call last\):\n(?:(?!\tat ).*\n?)*", text)
    said = traceback[0].strip() if traceback else text.splitlines()[0]
    if not executor:  # of a barrier's tasks Spark does not say where they ran
        return WorkerFailed("executor", said) if traceback else TrainoffError(text)
    return WorkerFailed(f"executor-{executor[1]}", said, log_of(executor[1]))
