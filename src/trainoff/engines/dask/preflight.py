"""Looks at a Dask cluster that others run before anything is timed: its Python, and what that lacks."""

from __future__ import annotations

import platform
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trainoff.engines.shared.shipping import as_archive, look
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    from trainoff.engines.dask.session import Session


def check_answers(address: str, timeout_s: float) -> None:
    """See that a scheduler listens, because Dask itself would try until its time is over; raises an OSError if not."""
    place = urlsplit(address)
    if place.scheme in ("tcp", "tls") and place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), timeout_s).close()


def examine(session: Session, modules: Sequence[str]) -> str:
    """What the workers are, in one sentence; an error if they cannot run the engine.

    Where trainoff is not installed on them it is sent along.
    """
    found = list(session.client.run(look(modules), workers=session.addresses).values())
    lacking = sorted({name for each in found for name in each["lacks"] if name in modules})
    if lacking:
        raise TrainoffError(
            f"the workers' Python ({found[0]['python']}) lacks {', '.join(lacking)}; install it on every node"
        )
    pythons = {each["version"].rsplit(".", 1)[0] for each in found}
    if pythons != {(own := platform.python_version().rsplit(".", 1)[0])}:
        raise TrainoffError(f"the workers run Python {', '.join(sorted(pythons))} and this machine {own}; use the same")
    if any("trainoff" in each["lacks"] for each in found):
        session.client.upload_file(as_archive(session.job.folder / "dask"))
    hosts = ", ".join(sorted({each["host"] for each in found}))
    return f"{session.workers} workers of {session.threads} threads on {hosts}, Python {found[0]['version']}"
