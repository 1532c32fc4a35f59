"""The status and the reason of a trial."""

import pytest

from trainoff.runner.events import ErrorEvent, TrialState, UsageEvent, WorkerFailedEvent
from trainoff.runner.status import status_of
from trainoff.runner.trial_process import ExitInfo

OF_TENSORFLOW = """Traceback (most recent call last):
  File "node.py", line 114, in <module>
    main()
UnavailableError: Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

  File "mirrored.py", line 44, in run

Collective ops is aborted by: tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:2
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference__step_205]
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("Traceback\n  File x\nValueError: no such row\n", "ValueError: no such row"),
        (OF_TENSORFLOW, "Collective ops is aborted by: tasks are unhealthy (stopped sending heartbeats):"),
        ("\t [[{{node A}}]]", "[[{{node A}}]]"),
        ("", "its log is empty"),
    ],
)
def test_the_last_error_of_a_workers_log_is_the_reason(log, reason):
    state = TrialState(0.0, phase="train")
    state.error = ErrorEvent(
        t=1.0, status="crashed", reason="a worker failed", phase="train", traceback=None, unfinished=False
    )
    state.worker_failed = WorkerFailedEvent(t=1.0, role="worker-1", exit=1, tail=log)
    found = status_of(ExitInfo(state, 1.0, 1, None, None))
    assert (found.status, found.phase, found.reason) == ("crashed", "train", f"worker-1: {reason}")


@pytest.mark.parametrize(
    ("code", "reason", "unfinished"),
    [
        (1, "the supervisor failed; its error is at the end of the log", False),
        (-9, "its processes were killed from outside", True),
    ],
)
def test_a_failed_supervisor_is_distinguished_from_a_killed_one(code, reason, unfinished):
    found = status_of(ExitInfo(TrialState(0.0), 1.0, code, None, None))
    assert (found.reason, found.unfinished) == (reason, unfinished)
    assert found.status == ("crashed" if unfinished else "start-failed")


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (40, "signal 40")])
def test_a_trial_process_that_died_of_a_signal_is_crashed_by_its_name(number, name):
    usage = UsageEvent(t=1.0, user_s=0, system_s=0, switches=0, largest_rss=0, orphans=0, sampler_s=0, exit=-number)
    found = status_of(ExitInfo(TrialState(0.0, phase="train", usage=usage), 1.0, 0, None, None))
    assert (found.status, found.reason) == ("crashed", f"the trial process died of {name}")
