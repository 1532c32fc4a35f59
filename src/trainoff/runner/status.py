"""The status of a trial: how it ended, or why it cannot run here."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass

from trainoff.clusters import namespaces
from trainoff.clusters.lab import register
from trainoff.clusters.local import cpus, signal_name
from trainoff.engines import Engine
from trainoff.runner.events import ErrorEvent
from trainoff.runner.faults import fault_of
from trainoff.runner.trial_process import ExitInfo
from trainoff.study import Trial
from trainoff.study.keys import LAB_FAULTS
from trainoff.study.machines import GIB, nodes_of

BEFORE_TRAINING = ("import", "cluster_start", "data_load", "ship")
STATUSES = ("ok", "timeout", "out-of-memory", "diverged", "start-failed", "crashed", "wrong-result", "unsupported",
            "interrupted")  # fmt: skip


@dataclass(frozen=True)
class TrialStatus:
    """The status of a trial, and where and why it ended."""

    status: str
    phase: str | None = None
    reason: str | None = None
    traceback: str | None = None
    unfinished: bool = False  # interrupted or killed from outside: the next run tries again


def status_of(exit_info: ExitInfo) -> TrialStatus:
    """Return the status of a trial that has ended."""
    state = exit_info.state
    phase = (state.error.phase if state.error else None) or state.phase
    if exit_info.cut_short:
        traceback = state.error.traceback if state.error and exit_info.cut_short == "timeout" else None
        interrupted = exit_info.cut_short == "interrupted"
        return TrialStatus(exit_info.cut_short, phase, exit_info.reason, traceback, interrupted)
    if state.over_memory:
        used, limit = state.over_memory.bytes / GIB, (state.over_memory.limit or 0) / GIB
        reason = f"{state.over_memory.role} used {used:.2f} GiB of its {limit:g} GiB"
        return TrialStatus("out-of-memory", state.reached if phase == "teardown" else phase, reason)
    if state.error:
        return _failed(exit_info, state.error, phase)
    if state.done and state.usage and state.usage.exit == 0:
        return TrialStatus("ok")
    return _killed(exit_info, phase)


def _failed(exit_info: ExitInfo, error: ErrorEvent, phase: str) -> TrialStatus:
    """Return the status of a trial process that reported an error."""
    status, worker = error.status, exit_info.state.worker_failed
    if status == "crashed" and exit_info.oom_kills > 0 and worker:
        return TrialStatus("out-of-memory", phase, f"the kernel killed {worker.role} because memory was full")
    if status == "crashed" and phase in BEFORE_TRAINING:
        status = "start-failed"
    if worker:
        return TrialStatus(status, phase, f"{worker.role}: {_error_line(worker.tail)}", worker.tail)
    return TrialStatus(status, phase, error.reason, error.traceback, error.unfinished)


def _error_line(tail: str) -> str:
    """Return the line of a log that names the error: the last one, but TensorFlow ends with the place in its graph."""
    lines = [line for line in tail.splitlines() if line.strip()] or ["its log is empty"]
    places = [index for index, line in enumerate(lines) if line.startswith("  File ")]
    return lines[places[-1] + 1 if places and "[[{{node" in lines[-1] else -1].strip()


def _killed(exit_info: ExitInfo, phase: str) -> TrialStatus:
    """Return the status of a trial process that ended without reporting an error."""
    code = exit_info.state.usage.exit if exit_info.state.usage else None
    if exit_info.oom_kills > 0:
        return TrialStatus("out-of-memory", phase, "the kernel killed it because the machine's memory was full")
    if code is None and exit_info.exit_code == 1:
        return TrialStatus(_failed_in(phase), phase, "the supervisor failed; its error is at the end of the log")
    if code is None:
        return TrialStatus("crashed", phase, "its processes were killed from outside", unfinished=True)
    if code in (-signal.SIGKILL, -signal.SIGTERM):
        name = signal_name(-code)
        return TrialStatus("crashed", phase, f"the trial process was killed from outside ({name})", unfinished=True)
    if code < 0:
        return TrialStatus("crashed", phase, f"the trial process died of {signal_name(-code)}")
    return TrialStatus(_failed_in(phase), phase, f"the trial process ended with code {code} without saying why")


def _failed_in(phase: str) -> str:
    return "start-failed" if phase in BEFORE_TRAINING else "crashed"


def check_preconditions(trial: Trial, engine: Engine) -> TrialStatus | None:
    """Return why a trial cannot run here, usually as `unsupported`; None if it can."""
    try:
        if missing := engine.missing():
            return TrialStatus("unsupported", "missing", str(missing[0]))
        if reason := _unsupported(trial, engine):
            return TrialStatus("unsupported", None, reason)
        engine.differs(trial)  # called again after the trial; an error in it is better found now
    except Exception as error:  # an engine may be third-party code
        return TrialStatus("start-failed", "import", f"its own checks failed: {type(error).__name__}: {error}")
    return None


def _unsupported(trial: Trial, engine: Engine) -> str | None:
    name, optimizer = engine.name, trial.params["optimizer"]
    if trial.model not in engine.models:
        return f"{name} has no model {trial.model}; it has {', '.join(sorted(engine.models))}"
    if optimizer not in (known := engine.optimizers(trial.model)):
        return f"{name} has no {optimizer} for the model {trial.model}; it has {', '.join(known)}"
    if trial.mode not in engine.modes:
        return f"{name} has no mode {trial.mode}; it has {', '.join(engine.modes)}"
    return _refuses_lab(trial, engine) or _refuses_fault(trial) or engine.refuses(trial)


def _refuses_lab(trial: Trial, engine: Engine) -> str | None:
    """Return why this machine cannot emulate the nodes."""
    if not trial.emulated:
        return None
    if outside := engine.outside(trial):
        return f"the nodes of a lab reach nothing outside it, and {outside}"
    if why_not := namespaces.why_not():
        return f"the lab needs namespaces of its own: {why_not}"
    return register.missing() or register.refuses(nodes_of(trial), len(cpus()))


def _refuses_fault(trial: Trial) -> str | None:
    """Return why the fault cannot be injected into this trial."""
    fault = fault_of(trial)
    if not fault:
        return None
    action, node = fault["action"], fault["node"]
    if trial.cluster not in ("processes", "lab"):
        return "faults are injected only into nodes that trainoff starts on this machine"
    if action in LAB_FAULTS and trial.cluster != "lab":
        return f'the fault {action} needs nodes with their own network and memory; use kind = "lab"'
    if node >= trial.workers:
        return f"the fault is for node {node}, but the nodes are 0 to {trial.workers - 1}"
    if action == "fill" and nodes_of(trial)[node].memory_gb is None:
        return "the fault fill needs a memory limit to fill; set memory_gb"
    if action == "limit" and (fault["bandwidth_mbit"] >= (nodes_of(trial)[node].bandwidth_mbit or math.inf)):
        return f"the fault limits a link to {fault['bandwidth_mbit']:g} Mbit/s that is no faster; set a lower bandwidth"
    return None
