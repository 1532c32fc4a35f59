"""A TensorFlow server: the process of a parameter server or a worker. `python -m ...serve JOB TASK THREADS`.

It only runs what a coordinator sends it, so of TensorFlow it loads the library and the few modules around the server:
a seventh of the time and under half of the memory that `import tensorflow` takes.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any

LISTENING = "listening on port "
HOST = "127.0.0.1"


def main() -> None:
    """Serve until killed."""
    server = serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), f"{HOST}:0")
    target = server.target if isinstance(server.target, str) else server.target.decode()
    print(LISTENING + target.rsplit(":", 1)[1], flush=True)
    server.join()


def serve(job: str, task: int, threads: int, address: str) -> Any:
    """Start a server that computes with so many threads; port 0 is any that is free."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    light_tensorflow()
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.training import server_lib

    # Two at a time, so that a long operation does not hold up what only passes on or reads.
    settings = config_pb2.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=2)
    return server_lib.Server({job: {task: address}}, job_name=job, task_index=task, config=settings)


def light_tensorflow() -> None:
    """Let TensorFlow's modules be imported one by one, without all that `import tensorflow` brings along.

    For processes that need but a few of them; nothing changes where it is loaded already.
    """
    if "tensorflow" in sys.modules:
        return
    found = importlib.util.find_spec("tensorflow")
    if not found or not found.submodule_search_locations:
        raise ImportError("TensorFlow is not installed")
    package = types.ModuleType("tensorflow")
    package.__path__ = list(found.submodule_search_locations)
    package.__spec__ = found
    sys.modules["tensorflow"] = package
    try:
        importlib.import_module("tensorflow.python.training.server_lib")
    except ImportError:  # another TensorFlow, laid out in another way
        for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
            del sys.modules[name]


if __name__ == "__main__":
    main()
