"""A TensorFlow server: the process of a parameter server or a worker. `python -m ...serve JOB TASK THREADS HOST`.

It only runs what a coordinator sends, so it loads the library and the few modules around the server: a seventh of the
time and under half of the memory of `import tensorflow`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from trainoff.engines.tensorflow import light_tensorflow

LISTENING = "listening on port "


def main() -> None:
    """Serve until killed."""
    server = serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), f"{sys.argv[4]}:0")
    target = server.target if isinstance(server.target, str) else server.target.decode()
    print(LISTENING + target.rsplit(":", 1)[1], flush=True)
    server.join()


def serve(job: str, task: int, threads: int, address: str) -> Any:
    """Start a server with a number of threads; port 0 means any free port."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    light_tensorflow()
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.training import server_lib

    # Two operations at a time, so that a long one does not delay those that only send or read.
    config = config_pb2.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=2)
    return server_lib.Server({job: {task: address}}, job_name=job, task_index=task, config=config)


if __name__ == "__main__":
    main()
