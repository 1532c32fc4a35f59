"""How a trial ended, in one word and one sentence."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from trainoff.runner.trial_process import Ending
from trainoff.study.nodes import GIB

BEFORE_TRAINING = ("import", "cluster_start", "data_load", "ship")
FAILED = 1  # the exit code of a Python program that has failed
STATUSES = (
    "ok",
    "timeout",
    "out-of-memory",
    "diverged",
    "start-failed",
    "crashed",
    "wrong-result",
    "unsupported",
    "interrupted",
)


@dataclass(frozen=True)
class Verdict:
    """The status of a trial, where and why it ended, and whether it deserves another try by itself."""

    status: str
    phase: str | None = None
    reason: str | None = None
    traceback: str | None = None
    unfinished: bool = False  # interrupted or killed from outside: says nothing about the engine


def judge(ending: Ending) -> Verdict:
    """Decide between the ways in which a trial can end."""
    story = ending.story
    phase = (story.error or {}).get("phase") or story.phase
    if ending.cut_short:
        traceback = (story.error or {}).get("traceback") if ending.cut_short == "timeout" else None
        return Verdict(ending.cut_short, phase, ending.reason, traceback, ending.cut_short == "interrupted")
    if story.over_memory:
        used, limit = story.over_memory["bytes"] / GIB, story.over_memory["limit"] / GIB
        reason = f"{story.over_memory['role']} used {used:.2f} GiB of its {limit:g} GiB"
        return Verdict("out-of-memory", story.reached if phase == "teardown" else phase, reason)
    if story.error:
        return _failed(ending, phase)
    if story.done and (story.usage or {}).get("exit") == 0:
        return Verdict("ok")
    return _killed(ending, phase)


def _failed(ending: Ending, phase: str) -> Verdict:
    """The trial process said why."""
    error, worker = ending.story.error or {}, ending.story.worker_failed
    status = error["status"]
    if status == "crashed" and ending.oom_kills > 0 and worker:
        return Verdict("out-of-memory", phase, f"the kernel killed {worker['role']} because memory was full")
    if status == "crashed" and phase in BEFORE_TRAINING:
        status = "start-failed"
    if worker:
        return Verdict(status, phase, f"{worker['role']}: {_last_words(worker['tail'])}", worker["tail"])
    return Verdict(status, phase, error["reason"], error["traceback"], error["unfinished"])


def _last_words(said: str) -> str:
    """The line that says what went wrong: the last, but TensorFlow's last is where in its graph that was."""
    lines = [line for line in said.splitlines() if line.strip()] or ["it said nothing"]
    places = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    told = places[-1] + 1 if places and "[[{{node" in lines[-1] else -1
    return lines[told].strip()


def _killed(ending: Ending, phase: str) -> Verdict:
    """The trial process is gone without a word."""
    code = (ending.story.usage or {}).get("exit")
    if ending.oom_kills > 0:
        return Verdict("out-of-memory", phase, "the kernel killed it because the machine's memory was full")
    if code is None and ending.exit_code == FAILED:
        return Verdict(_early_or_not(phase), phase, "what guards the trial failed; the end of its log says why")
    if code is None:
        return Verdict("crashed", phase, "its processes were killed from outside", unfinished=True)
    if code in (-signal.SIGKILL, -signal.SIGTERM):
        name = signal.Signals(-code).name
        return Verdict("crashed", phase, f"the trial process was killed from outside ({name})", unfinished=True)
    if code < 0:
        return Verdict("crashed", phase, f"the trial process died of {signal.Signals(-code).name}")
    return Verdict(_early_or_not(phase), phase, f"the trial process ended with code {code} without saying why")


def _early_or_not(phase: str) -> str:
    return "start-failed" if phase in BEFORE_TRAINING else "crashed"
