"""Starts a trial: leaves the machine's namespaces where it can, and hands over to the warden.

Run by the conductor as `python -m trainoff.conduct.launch FOLDER`, with the life line as standard input.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from trainoff.conduct import isolate
from trainoff.conduct.warden import Orders, Warden

LIFE_LINE = 0


def main() -> int:
    """Fork the warden into the new namespaces and pass on its end; dies with the conductor.

    Without namespaces this process is the warden itself, which must live on until it has killed the others.
    """
    orders = Orders.read(Path(sys.argv[1]))
    if not orders.namespaces:
        isolate.adopt_orphans()
        return Warden(orders, LIFE_LINE).run()
    _die_with_conductor()
    isolate.unshare(orders.network)
    warden = os.fork()
    if warden == 0:
        _die_with_conductor()
        isolate.settle(orders.network)
        os._exit(Warden(orders, LIFE_LINE).run() & 0xFF)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(warden, signal.SIGTERM))
    _, status = os.waitpid(warden, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def _die_with_conductor() -> None:
    """Be killed with the parent; if the conductor died before the kernel could be asked for that, end now."""
    isolate.die_with_parent()
    poll = select.poll()
    poll.register(LIFE_LINE, 0)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
