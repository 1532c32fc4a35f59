"""How many bytes have travelled inside a trial, where it has a network of its own."""

from __future__ import annotations

import os
from pathlib import Path

from trainoff.clusters.lab.network import carried

OWN_NETWORK = "TRAINOFF_OWN_NETWORK"  # set by the warden for the trial's processes
ALONE, LAB = "loopback", "lab"  # of what kind it is
OF_WARDEN = Path("/proc/1/net/dev")  # where a lab's nodes are joined


def bytes_so_far() -> int | None:
    """All bytes over the trial's network since it began; None where others use the network, too.

    In a lab these are the bytes between nodes.
    """
    kind = os.environ.get(OWN_NETWORK)
    if kind is None:
        return None
    if kind == LAB:
        return sum(sent for sent, _ in carried(OF_WARDEN).values())
    import psutil

    return int(psutil.net_io_counters(nowrap=False).bytes_recv)
