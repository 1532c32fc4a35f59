"""Looks at a cluster that others run before anything is timed: its slots, cores, memory, and Python."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainoff.engines.shared.shipping import as_archive, look
from trainoff.engines.spark.explain import PYTHON
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    from trainoff.engines.spark.session import Session

ANSWER_S = 5.0


def check_answers(address: str) -> None:
    """See that a standalone master listens, because Spark itself would try for a minute. Others are not asked."""
    if not address.startswith("spark://"):
        return
    for place in address.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), ANSWER_S):
                return
        except (OSError, ValueError):
            continue
    raise TrainoffError(f"no Spark master answers at {address}; is it running, and can it be reached from here?")


def examine(session: Session, modules: Sequence[str]) -> str:
    """What the executors are, in one sentence; an error if they cannot run the engine.

    Where trainoff is not installed on them it is sent along.
    """
    count = session.executors
    with session.failures():
        found = session.context.parallelize(range(count), count).mapPartitions(_each(look(modules))).collect()
    lacking = sorted({name for each in found for name in each["lacks"] if name in modules})
    if lacking:
        raise TrainoffError(
            f"the executors' Python ({found[0]['python']}) lacks {', '.join(lacking)}; install it on every node, or "
            f'name another Python in [cluster.spark]: "{PYTHON}" = "/path/to/python"'
        )
    if any("trainoff" in each["lacks"] for each in found):
        session.context.addPyFile(as_archive(session.job.folder / "spark"))
    pythons, hosts = {each["version"] for each in found}, sorted({each["host"] for each in found})
    return (
        f"{count} executors of {session.cores} cores and {session.heap_mb} MB on {', '.join(hosts)}, "
        f"Python {', '.join(sorted(pythons))}"
    )


def _each(tell: Callable[[], dict[str, Any]]) -> Callable[[Iterator[int]], list[dict[str, Any]]]:
    """The same, as Spark asks a part of it."""

    def ask(parts: Iterator[int]) -> list[dict[str, Any]]:
        list(parts)
        return [tell()]

    return ask
