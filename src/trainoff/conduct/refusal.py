"""Why a trial cannot run here: what is missing, and what its engine does not have or will not do."""

from __future__ import annotations

import math

from trainoff.clusters import namespaces
from trainoff.clusters.lab import requirements
from trainoff.clusters.local import cpus
from trainoff.engines import Engine
from trainoff.runner.faults.schedule import fault_of
from trainoff.runner.status import Verdict
from trainoff.study import Trial
from trainoff.study.fault import NEED_LAB
from trainoff.study.nodes import nodes_of

FAULTY = ("processes", "lab")  # kinds of clusters whose nodes can be harmed


def cannot(trial: Trial, engine: Engine) -> Verdict | None:
    """Why a trial cannot run here, mostly as the verdict `unsupported`; None if it can."""
    try:
        return _refusal(trial, engine)
    except Exception as error:  # an engine is somebody else's code
        return Verdict("start-failed", "import", f"its own checks failed: {type(error).__name__}: {error}")


def _refusal(trial: Trial, engine: Engine) -> Verdict | None:
    if missing := engine.missing():
        return Verdict("unsupported", "missing", str(missing[0]))
    if trial.model not in engine.models:
        known = ", ".join(sorted(engine.models))
        return Verdict("unsupported", None, f"{engine.name} has no model {trial.model}; it has {known}")
    optimizer = trial.params["optimizer"]
    optimizers = engine.optimizers(trial.model)
    if optimizer not in optimizers:
        known = ", ".join(optimizers)
        return Verdict(
            "unsupported", None, f"{engine.name} has no {optimizer} for the model {trial.model}; it has {known}"
        )
    if trial.mode not in engine.modes:
        return Verdict("unsupported", None, f"{engine.name} has no mode {trial.mode}; it has {', '.join(engine.modes)}")
    if reason := _refuses_lab(trial, engine) or _refuses_fault(trial) or engine.refuses(trial):
        return Verdict("unsupported", None, reason)
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
    return requirements.missing() or requirements.refuses(nodes_of(trial), len(cpus()))


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
