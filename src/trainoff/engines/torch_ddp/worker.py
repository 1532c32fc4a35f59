"""A worker of torch-ddp, as torchrun starts it: `python -m trainoff.engines.torch_ddp.worker ASSIGNMENT`.

The first worker leads: it speaks with the driver.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from trainoff.clusters.orphans import die_with_parent
from trainoff.engines.handover import take_over
from trainoff.engines.torch import predict
from trainoff.engines.torch.assignment import Assignment
from trainoff.engines.torch.together import join, learn
from trainoff.engines.torch_ddp.start import FAILURE

NETWORK_WORDS = ("gloo", "connection", "store", "socket")  # in what torch says when it cannot reach another worker


def main() -> None:
    die_with_parent()
    path = Path(sys.argv[1])
    try:
        work(pickle.loads(path.read_bytes()))
    except Exception as error:
        traceback.print_exc()
        if not of_others(error):
            own_up(path.with_name(FAILURE))
        sys.exit(1)


def work(assignment: Assignment) -> None:
    """Work to the end of the training; who leads labels what is asked for then, until the driver hangs up."""
    join(assignment.job.cores)
    network, leader = learn(replace(assignment, job=take_over(assignment.job)))
    dist.barrier()
    dist.destroy_process_group()
    if leader:
        leader.answer(lambda rows: predict(network, rows.mapped(), "cpu"))


def of_others(error: Exception) -> bool:
    """Whether an error only says that another process is gone."""
    if isinstance(error, EOFError | ConnectionError | dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in NETWORK_WORDS)


def own_up(path: Path) -> None:
    """Say what happened; if several workers have something to say, the first is heard."""
    draft = path.with_name(f"{path.name}-{os.getpid()}")
    draft.write_text(f"{os.environ['TRAINOFF_ROLE']}\n{traceback.format_exc()}")
    with suppress(FileExistsError):
        os.link(draft, path)  # whole at once, and only if there is none


if __name__ == "__main__":
    main()
