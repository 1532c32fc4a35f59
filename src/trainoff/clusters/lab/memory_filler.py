"""Fill the memory of a lab's node up to its limit: `python -m trainoff.clusters.lab.memory_filler FOLDER NODE`.

The kernel then kills other processes of the node that allocate more, and not this one.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from trainoff.clusters.lab.cluster import LabPlan

CHUNK = 2**20
LEFT = 4 * CHUNK


def main() -> None:
    plan, number = LabPlan.read(Path(sys.argv[1])), int(sys.argv[2])
    with contextlib.suppress(OSError):  # without root the kernel may kill this process, too
        Path("/proc/self/oom_score_adj").write_text("-1000")
    group, limit = plan.group(number), plan.specs[number].memory_bytes or 0
    kept = []
    while limit - group.usage().memory_bytes > LEFT:
        kept.append(bytearray(b"1" * CHUNK))
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
