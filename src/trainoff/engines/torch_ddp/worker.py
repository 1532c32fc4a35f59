"""The program of torch-ddp's workers, which torchrun starts; the training itself is in `engines/torch/ddp_worker.py`.

`python -m trainoff.engines.torch_ddp.worker ASSIGNMENT` takes the file with a pickled `DdpAssignment`.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path

from trainoff.clusters.local import die_with_parent
from trainoff.engines.shared.shipping import from_files
from trainoff.engines.torch.ddp_driver import DdpAssignment
from trainoff.engines.torch.ddp_worker import join, reporting_failures, work


def main() -> None:
    die_with_parent()
    assignment: DdpAssignment = pickle.loads(Path(sys.argv[1]).read_bytes())
    try:
        with reporting_failures(assignment):
            join(assignment.job.cores)
            work(assignment, from_files)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
