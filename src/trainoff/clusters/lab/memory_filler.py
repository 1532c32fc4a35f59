"""Uses up the memory of a lab's node: `python -m trainoff.clusters.lab.memory_filler FOLDER NODE`, run on that node.

It takes what is left below the node's limit and keeps it, so that whoever wants more is killed by the kernel, and not
this process.
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
    with contextlib.suppress(OSError):  # without root the kernel may choose this one
        Path("/proc/self/oom_score_adj").write_text("-1000")
    group, limit = plan.group(number), plan.specs[number].memory_bytes or 0
    kept = []
    while limit - group.usage().memory_bytes > LEFT:
        kept.append(bytearray(b"1" * CHUNK))
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
