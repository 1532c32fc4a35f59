"""Evaluation of a trial's snapshots, and the certificate: the distance of its weights from the float64 reference."""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from trainoff.data import Data
from trainoff.data.cache import root as cache_folder
from trainoff.engines import Job
from trainoff.engines.shared.snapshots import CERTIFIED_STEPS
from trainoff.files import atomic_open
from trainoff.models import Model, NamedWeights, Weights, evaluate, fingerprint, flatten, trajectory, unflatten
from trainoff.runner.events import SnapshotEvent, TrialState, growth

REFERENCE = 1  # the version of the reference, by which cached trajectories are found
# docs/concepts.md and docs/reading-the-board.md have both limits, too.
EXACT = 1e-3  # float32 rounding measures about 1e-4
TOLERATED = 5e-3  # a gradient that is 1 % off measures at least 7e-3
FAR = 10  # a distance so many times that of rounding has another cause, however small the steps
KEPT_TRAJECTORIES = 64


def certificate(job: Job, state: TrialState, differs: str | None) -> dict[str, Any]:
    """Return the certificate: distances from the reference's weights, relative to how far those have moved."""
    result: dict[str, Any] = {"initial_weights_sha256": fingerprint(job.weights), "max_rel_diff": None, "steps": {}}
    if differs:
        return {**result, "verdict": "different by design", "reason": differs}
    seen = {event.step: event for event in state.snapshots}
    judged = []
    for step, weights in reference_weights(job).items():
        if step in seen:
            distance = relative_distance(read_snapshot(seen[step], job.folder, job.model), weights, job.weights)
            result["steps"][str(step)] = distance
            noise = rounding(weights, job.weights, step)
            if noise <= TOLERATED or distance > FAR * noise:
                judged.append(distance)
    if not result["steps"]:
        return {**result, "verdict": None, "reason": "training did not get as far as the first snapshot"}
    if not judged:
        reason = "the steps are too small to be distinguished from float32 rounding"
        return {**result, "verdict": None, "reason": reason}
    worst = result["max_rel_diff"] = max(judged)
    if worst <= TOLERATED:
        return {**result, "verdict": "exact" if worst <= EXACT else "within tolerance", "reason": None}
    reason = f"the weights are {worst:.1%} of the way off the reference's path; at most {TOLERATED:.1%} is rounding"
    return {**result, "verdict": "wrong", "reason": reason}


def relative_distance(weights: Weights, reference: Weights, initial: Weights) -> float:
    """Return `|w - w_ref| / |w_ref - w_0|` over all weights."""
    target = flatten(reference).astype(np.float64)
    return _ratio(np.linalg.norm(flatten(weights) - target), np.linalg.norm(target - flatten(initial)))


def rounding(reference: Weights, initial: Weights, step: int) -> float:
    """Return the distance that float32 may cause: half a unit in the last place of each weight and step."""
    target = flatten(reference).astype(np.float64)
    noise = np.linalg.norm(target) * np.finfo(np.float32).eps / 2 * np.sqrt(step)
    return _ratio(noise, np.linalg.norm(target - flatten(initial)))


def _ratio(distance: Any, moved: Any) -> float:
    ratio = float(distance / moved) if moved else float(distance > 0)
    return ratio if np.isfinite(ratio) else 1e9


def reference_weights(job: Job) -> dict[int, NamedWeights]:
    """Return the reference's weights at the certified steps, which are computed once and cached."""
    # All that `trajectory` gets besides the model and the rows, so that the key misses nothing.
    settings: dict[str, Any] = {
        "weights": job.weights,
        "order": job.order,
        "optimizer": job.params["optimizer"],
        "momentum": job.params["momentum"],
        "rates": job.rates[: max(CERTIFIED_STEPS)].tolist(),
        "at": CERTIFIED_STEPS,
    }
    key = [REFERENCE, job.model, job.data.identity, settings | {"weights": fingerprint(job.weights)}]
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
    path = cache_folder() / "reference" / f"{name}.npz"
    try:
        with np.load(path) as stored:
            return {int(step): unflatten(job.model, stored[step]) for step in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):  # missing or damaged
        computed = trajectory(job.model, x=job.data.x_train, y=job.data.y_train, **settings)
    with contextlib.suppress(OSError):  # without the cache they are computed again
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {str(step): flatten(value) for step, value in computed.items()}
        with atomic_open(path) as file:
            np.savez(file, **arrays)
        oldest_first = sorted(path.parent.glob("*.npz"), key=lambda kept: kept.stat().st_mtime)
        for old in oldest_first[:-KEPT_TRAJECTORIES]:
            old.unlink(missing_ok=True)
    return computed


def read_snapshot(event: SnapshotEvent, folder: Path, model: Model) -> Weights:
    """Return the weights of one snapshot."""
    return unflatten(model, np.fromfile(folder / event.file, np.float32, model.parameter_count))


def curve(state: TrialState, folder: Path, model: Model, data: Data) -> list[dict[str, Any]]:
    """Return a row per snapshot: the progress of the training, and the quality on the test set."""
    cpu = state.cpu_series()
    return [
        {
            "step": event.step,
            "samples_seen": event.samples_seen,
            "train_s": event.train_s,
            "wall_s": event.t - state.start,
            "core_s": growth(cpu, state.train_start or event.t, event.t) if cpu else None,
            "objective": event.loss,
            **evaluate(model, read_snapshot(event, folder, model), data.x_test, data.y_test),
        }
        for event in state.snapshots
    ]


def objectives(state: TrialState) -> list[dict[str, Any]]:
    """Return a row per training loss that was reported after its step, of which nothing else is known."""
    return [
        {"step": event.step, "samples_seen": event.samples_seen, "train_s": event.train_s, "objective": event.loss}
        for event in state.objectives
    ]
