"""Nearest names and clean quotes, for sentences that answer a mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 60  # a longer word is not a slip of the finger
_OTHER_NAMES = {  # what other programs call the same thing
    name: ours
    for ours, names in {
        "learning_rate": ("lr", "rate"),
        "batch_size": ("batch", "batchsize"),
        "optimizer": ("optimiser",),
        "hidden": ("layers", "hidden_layers", "units"),
        "epochs": ("epoch", "iterations", "max_iter"),
        "l2": ("weight_decay", "alpha"),
        "cores": ("threads", "cpus"),
        "memory_gb": ("memory",),
        "timeout_s": ("timeout",),
        "engines": ("engine",),
        "repeat": ("repeats", "repetitions", "n"),
        "torch": ("pytorch",),
        "tensorflow": ("tf",),
        "sklearn": ("scikit-learn",),
    }.items()
    for name in names
}


def same_as(word: str) -> str | None:
    """What trainoff calls the thing that other programs call `word`, or None if that is not known."""
    return _OTHER_NAMES.get(word.lower())


def nearest(word: str, options: Iterable[str]) -> str | None:
    """The option that `word` was most likely meant to be, or None if nothing is close."""
    lower = {option.lower(): option for option in options}
    if len(word) > _LONGEST:
        return None
    ours = same_as(word)
    if ours in lower and word.lower() not in lower:
        return lower[ours]
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    return lower[found[0]] if found else None


def suggest(word: str, options: Iterable[str], many: str) -> str:
    """The end of a sentence: the nearest option, or else all of them, introduced by `many`."""
    names = list(options)
    close = nearest(word, names)
    if close is not None:
        return f"did you mean {quote(close)}?"
    return f"{many} {', '.join(names)}" if names else f"{many} none"


def quote(word: str) -> str:
    """A word in back-quotes, on one line and not too long, whatever its characters are."""
    return f"`{clean(word)}`"


def clean(text: str, longest: int = _LONGEST) -> str:
    """The text on one line: what cannot be printed is escaped, what is too long is cut."""
    cut = text if len(text) <= longest else text[: longest - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
