"""Waiting for something long without falling silent."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

BEAT_S = 0.5  # between two signs of life


def patiently(work: Callable[[], Any], beat: Callable[[], None]) -> Any:
    """Do something long aside, and say every half second that it is still being done."""
    aside = ThreadPoolExecutor(1)
    doing = aside.submit(work)
    try:
        while not doing.done():
            beat()
            wait([doing], BEAT_S)
        return doing.result()
    finally:
        aside.shutdown(wait=False)  # asked to end meanwhile, nobody waits for it: closing the session ends it
