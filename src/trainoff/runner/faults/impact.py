"""What a fault did to a trial, for its record: when it was noticed, when it was made good, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from trainoff.runner.events import Story

NOT_DONE, UNHARMED, RECOVERED, FAILED = "not done", "unharmed", "recovered", "failed"
NOTHING = dict.fromkeys(
    ("at_s", "step", "processes", "healed_s", "detected_s", "recovered_s", "longest_gap_s", "samples_redone"), None
)


def harm(asked: Mapping[str, Any], story: Story, failed: bool) -> dict[str, Any]:
    """What was asked for and what came of it. All seconds but `at_s` are counted from the fault."""
    done = story.fault
    if not done or not done["processes"]:
        return {**asked, **NOTHING, "why": done["why"] if done else None, "state": NOT_DONE}
    noticed = _noticed(story, failed)
    return {
        **asked,
        "at_s": round(done["at_s"], 3),
        "step": done["step"],
        "processes": done["processes"],
        "healed_s": _since(story, story.healed["t"] if story.healed else None),
        "detected_s": _since(story, noticed),
        "recovered_s": _since(story, None if noticed is None else _recovered(story, noticed)),
        "longest_gap_s": round(_longest_gap(story), 3),
        "samples_redone": sum(loss["samples"] for loss in story.losses if _when(loss) >= done["t"]),
        "why": None,
        "state": FAILED if failed else UNHARMED if noticed is None else RECOVERED,
    }


def _when(loss: Mapping[str, Any]) -> float:
    """When a loss was noticed; it may be told later."""
    return float(loss["t"] - loss["ago_s"])


def _noticed(story: Story, failed: bool) -> float | None:
    """When the engine first said that somebody was gone, or gave up; None if it never noticed."""
    assert story.fault
    told = [_when(loss) for loss in story.losses]
    if failed and story.error:  # it is said when all is cleared away; where the training failed, that ended before
        in_training = story.error["phase"] == "train" and story.train_end
        told.append(in_training or story.error["t"])
    return min((t for t in told if t >= story.fault["t"]), default=None)


def _recovered(story: Story, noticed: float) -> float | None:
    """When the training was for the first time further than it had ever been when the loss was noticed."""
    furthest = max((seen for t, seen in story.beats if t <= noticed), default=0)
    return next((t for t, seen in story.beats if t > noticed and seen > furthest), None)


def _longest_gap(story: Story) -> float:
    """The longest time after the fault in which no progress was told, to the end of the training.

    Some engines only say that they live; that is none.
    """
    assert story.fault
    start = story.fault["t"]
    end = [story.train_end] if story.train_end and story.train_end > start else []
    moved = [t for (_, before), (t, seen) in pairwise(story.beats) if t > start and seen != before]
    told = [start, *moved, *end]
    return max((after - before for before, after in pairwise(told)), default=0.0)


def _since(story: Story, t: float | None) -> float | None:
    assert story.fault
    return None if t is None else round(t - story.fault["t"], 3)
