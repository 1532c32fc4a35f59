"""Suggestions of the nearest name and quotes, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 60  # a longer name is not a typing error
_SYNONYMS = {  # names of the same thing in other programs
    name: key
    for key, names in {
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


def synonym(name: str) -> str | None:
    """Return trainoff's name of what other programs call `name`; None if it is not known."""
    return _SYNONYMS.get(name.lower())


def nearest(name: str, options: Iterable[str]) -> str | None:
    """Return the option that was probably meant by `name`; None if nothing is close."""
    lower = {option.lower(): option for option in options}
    if len(name) > _LONGEST:
        return None
    same = synonym(name)
    if same in lower and name.lower() not in lower:
        return lower[same]
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return lower[found[0]] if found else None


def suggest(name: str, options: Iterable[str], introduction: str) -> str:
    """Return the hint of an error: the nearest option, or else all of them after an introduction."""
    names = list(options)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean {quote(close)}?"
    return f"{introduction} {', '.join(names) or 'none'}"


def quote(text: str) -> str:
    """Return a text in back-quotes, on one line and not too long."""
    return f"`{clean(text)}`"


def clean(text: str, longest: int = _LONGEST) -> str:
    """Return a text on one line: unprintable characters are escaped, and a long text is cut."""
    cut = text if len(text) <= longest else text[: longest - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
