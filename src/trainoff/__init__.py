"""trainoff trains the same neural network on many training systems and says which one to use.

from trainoff import load, read, run
results = run(read("studies/quick.toml"))   # or load("results/quick")
results                                     # the leader board
results.table()                             # a Polars frame, a row per record
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["Results", "Study", "load", "read", "run"]


def __getattr__(name: str) -> Any:
    """Import the API when it is first used, so that the command line starts fast."""
    if name in __all__:
        from trainoff import api

        return getattr(api, name)
    raise AttributeError(f"module 'trainoff' has no attribute {name!r}")
