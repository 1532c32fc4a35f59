"""torchrun as a process of a trial: it ends with its parent, and its last line says why it gave up.

`python -m trainoff.engines.torch_ddp.agent ARGUMENTS` takes the arguments of torchrun.
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from trainoff.clusters.local import die_with_parent


def main() -> None:
    die_with_parent()
    try:
        run(parse_args(sys.argv[1:]))  # type: ignore[no-untyped-call]  # torch has no types here
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        ended = f"signal {-first.exitcode}" if first.exitcode < 0 else f"code {first.exitcode}"
        sys.exit(f"{error}\nworker-{rank} ended with {ended}, and no restarts are left")


if __name__ == "__main__":
    main()
