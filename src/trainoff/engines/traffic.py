"""How many bytes have travelled inside a trial, where it has a network of its own."""

from __future__ import annotations

import os

OWN_NETWORK = "TRAINOFF_OWN_NETWORK"  # set in the trial's processes by the warden


def bytes_so_far() -> int | None:
    """All bytes over the trial's network since it began; None where others use the network, too."""
    if OWN_NETWORK not in os.environ:
        return None
    import psutil

    return int(psutil.net_io_counters(nowrap=False).bytes_recv)
