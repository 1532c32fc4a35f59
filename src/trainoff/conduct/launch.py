"""Starts a trial: leaves the machine's namespaces where it can, and hands over to the warden.

Run by the conductor as `python -m trainoff.conduct.launch FOLDER`, with the life line as standard input.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

from trainoff.clusters import namespaces
from trainoff.clusters.local import die_with_parent
from trainoff.engines.watch import Channel
from trainoff.errors import TrainoffError
from trainoff.runner.supervisor import Orders, Warden

LIFE_LINE = 0


def main() -> int:
    """Fork the warden into the new namespaces and pass on its end; dies with the conductor.

    Without namespaces this process is the warden itself, which must live on until it has killed the others.
    """
    orders = Orders.read(Path(sys.argv[1]))
    if not orders.namespaces:
        namespaces.adopt_orphans()
        return _guard(orders)
    die_with_parent()
    assert orders.network or not orders.lab, "a lab is made in a network of its own"
    namespaces.unshare(orders.network, lab=orders.lab is not None)
    warden = os.fork()
    if warden == 0:
        die_with_parent()
        namespaces.settle(orders.network)
        os._exit(_guard(orders) & 0xFF)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(warden, signal.SIGTERM))
    _, status = os.waitpid(warden, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def _guard(orders: Orders) -> int:
    """Be the warden, unless the conductor died before it could be told: then there is nobody to work for."""
    try:
        warden = Warden(orders, LIFE_LINE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return 1
        raise
    except TrainoffError as error:  # it could not make what the trial needs
        said = {"status": "start-failed", "reason": str(error), "traceback": None, "unfinished": False}
        Channel(Path(orders.folder) / "events").say("error", phase="cluster_start", **said)
        return 1
    return warden.run()


if __name__ == "__main__":
    sys.exit(main())
