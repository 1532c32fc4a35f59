"""Modules that only an export needs, and the command that brings them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainoff.errors import TrainoffError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the imports of an extra: where it is missing, one sentence says how to get it."""
    try:
        yield
    except ImportError as error:
        raise TrainoffError(
            f'--to {extra} needs {extra}, which is not installed; pip install "trainoff[{extra}]"'
        ) from error
