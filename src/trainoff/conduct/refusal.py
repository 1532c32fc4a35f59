"""Why a trial cannot run here: what is missing, and what its engine does not have or will not do."""

from __future__ import annotations

from trainoff.conduct.verdict import Verdict
from trainoff.engines import Engine
from trainoff.study import Trial


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
    if reason := _refuses_fault(trial) or engine.refuses(trial):
        return Verdict("unsupported", None, reason)
    engine.differs(trial)  # asked again after the trial; if it cannot answer, better now than then
    return None


def _refuses_fault(trial: Trial) -> str | None:
    """Why the fault that is asked for cannot be done to this trial."""
    fault = trial.params.get("fault")
    if not fault:
        return None
    if trial.attached:
        return "a fault is done only to processes that trainoff has started, and a cluster of others is not touched"
    if fault["worker"] >= trial.workers:
        return f"the fault is for worker {fault['worker']}, and there are only workers 0 to {trial.workers - 1}"
    return None
