"""The status of a trial: how it ended in one word and one sentence, or why it cannot run here."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass

from trainoff.clusters import namespaces
from trainoff.clusters.lab import register
from trainoff.clusters.local import cpus
from trainoff.engines import Engine
from trainoff.runner.events import ErrorEvent
from trainoff.runner.faults import fault_of
from trainoff.runner.trial_process import ExitInfo
from trainoff.study import Trial
from trainoff.study.keys import NEED_LAB
from trainoff.study.machines import GIB, nodes_of

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
class TrialStatus:
    """The status of a trial, where and why it ended, and whether it deserves another try by itself."""

    status: str
    phase: str | None = None
    reason: str | None = None
    traceback: str | None = None
    unfinished: bool = False  # interrupted or killed from outside: says nothing about the engine


def status_of(ending: ExitInfo) -> TrialStatus:
    """Decide between the ways in which a trial can end."""
    state = ending.state
    phase = (state.error.phase if state.error else None) or state.phase
    if ending.cut_short:
        traceback = state.error.traceback if state.error and ending.cut_short == "timeout" else None
        return TrialStatus(ending.cut_short, phase, ending.reason, traceback, ending.cut_short == "interrupted")
    if state.over_memory:
        used, limit = state.over_memory.bytes / GIB, (state.over_memory.limit or 0) / GIB
        reason = f"{state.over_memory.role} used {used:.2f} GiB of its {limit:g} GiB"
        return TrialStatus("out-of-memory", state.reached if phase == "teardown" else phase, reason)
    if state.error:
        return _failed(ending, state.error, phase)
    if state.done and state.usage and state.usage.exit == 0:
        return TrialStatus("ok")
    return _killed(ending, phase)


def _failed(ending: ExitInfo, error: ErrorEvent, phase: str) -> TrialStatus:
    """The trial process said why."""
    status, worker = error.status, ending.state.worker_failed
    if status == "crashed" and ending.oom_kills > 0 and worker:
        return TrialStatus("out-of-memory", phase, f"the kernel killed {worker.role} because memory was full")
    if status == "crashed" and phase in BEFORE_TRAINING:
        status = "start-failed"
    if worker:
        return TrialStatus(status, phase, f"{worker.role}: {_last_words(worker.tail)}", worker.tail)
    return TrialStatus(status, phase, error.reason, error.traceback, error.unfinished)


def _last_words(said: str) -> str:
    """The line that says what went wrong: the last, but TensorFlow's last is where in its graph that was."""
    lines = [line for line in said.splitlines() if line.strip()] or ["it said nothing"]
    places = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    told = places[-1] + 1 if places and "[[{{node" in lines[-1] else -1
    return lines[told].strip()


def _killed(ending: ExitInfo, phase: str) -> TrialStatus:
    """The trial process is gone without a word."""
    code = ending.state.usage.exit if ending.state.usage else None
    if ending.oom_kills > 0:
        return TrialStatus("out-of-memory", phase, "the kernel killed it because the machine's memory was full")
    if code is None and ending.exit_code == FAILED:
        return TrialStatus(_early_or_not(phase), phase, "the supervisor failed; the end of the log says why")
    if code is None:
        return TrialStatus("crashed", phase, "its processes were killed from outside", unfinished=True)
    if code in (-signal.SIGKILL, -signal.SIGTERM):
        name = signal.Signals(-code).name
        return TrialStatus("crashed", phase, f"the trial process was killed from outside ({name})", unfinished=True)
    if code < 0:
        return TrialStatus("crashed", phase, f"the trial process died of {signal.Signals(-code).name}")
    return TrialStatus(_early_or_not(phase), phase, f"the trial process ended with code {code} without saying why")


def _early_or_not(phase: str) -> str:
    return "start-failed" if phase in BEFORE_TRAINING else "crashed"


FAULTY = ("processes", "lab")  # kinds of clusters whose nodes can be harmed


def check_preconditions(trial: Trial, engine: Engine) -> TrialStatus | None:
    """Why a trial cannot run here, mostly as the verdict `unsupported`; None if it can."""
    try:
        return _refusal(trial, engine)
    except Exception as error:  # an engine is somebody else's code
        return TrialStatus("start-failed", "import", f"its own checks failed: {type(error).__name__}: {error}")


def _refusal(trial: Trial, engine: Engine) -> TrialStatus | None:
    if missing := engine.missing():
        return TrialStatus("unsupported", "missing", str(missing[0]))
    if trial.model not in engine.models:
        known = ", ".join(sorted(engine.models))
        return TrialStatus("unsupported", None, f"{engine.name} has no model {trial.model}; it has {known}")
    optimizer = trial.params["optimizer"]
    optimizers = engine.optimizers(trial.model)
    if optimizer not in optimizers:
        known = ", ".join(optimizers)
        return TrialStatus(
            "unsupported", None, f"{engine.name} has no {optimizer} for the model {trial.model}; it has {known}"
        )
    if trial.mode not in engine.modes:
        return TrialStatus(
            "unsupported", None, f"{engine.name} has no mode {trial.mode}; it has {', '.join(engine.modes)}"
        )
    if reason := _refuses_lab(trial, engine) or _refuses_fault(trial) or engine.refuses(trial):
        return TrialStatus("unsupported", None, reason)
    engine.differs(trial)  # asked again after the trial; if it cannot answer, better now than then
    return None


def _refuses_lab(trial: Trial, engine: Engine) -> str | None:
    """Why the emulated nodes that are asked for cannot be had here."""
    if not trial.emulated:
        return None
    if outside := engine.outside(trial):
        return f"the nodes of a lab reach nobody outside, and {outside}"
    if why_not := namespaces.why_not():
        return f"the lab needs namespaces of its own: {why_not}"
    return register.missing() or register.refuses(nodes_of(trial), len(cpus()))


def _refuses_fault(trial: Trial) -> str | None:
    """Why the fault that is asked for cannot be done to this trial."""
    fault = fault_of(trial)
    if not fault:
        return None
    action, node = fault["action"], fault["node"]
    if trial.cluster not in FAULTY:
        return "a fault is done only to nodes that trainoff has started on this machine, and others are not touched"
    if action in NEED_LAB and trial.cluster != "lab":
        return f'the fault {action} needs nodes with a network and memory of their own; use kind = "lab"'
    if node >= trial.workers:
        return f"the fault is for node {node}, and there are only nodes 0 to {trial.workers - 1}"
    if action == "fill" and nodes_of(trial)[node].memory_gb is None:
        return "the fault fill needs a limit of memory to fill; say memory_gb"
    if action == "limit" and (fault["bandwidth_mbit"] >= (nodes_of(trial)[node].bandwidth_mbit or math.inf)):
        return f"the fault limits a link to {fault['bandwidth_mbit']:g} Mbit/s that is no faster; take less"
    return None
