"""A TensorFlow process on an executor: a worker, a parameter server, or the coordinator.

`python -m trainoff.engines.tf_on_spark.node POST`
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.engines.tf_cluster.serve import serve

if TYPE_CHECKING:
    from trainoff.engines.tf_on_spark.feed import Tap
    from trainoff.engines.tf_on_spark.steward import Post


def main() -> None:
    """Do what the post says, until whoever started this process ends."""
    threading.Thread(target=_go_with_the_steward, daemon=True).start()
    with Path(sys.argv[1]).open("rb") as file:
        post: Post = pickle.load(file)
    Path(sys.argv[1]).unlink()  # it holds secrets
    job = post.assignment.job
    if post.job == "ps":
        serve("ps", post.number, ceil(job.cores), post.address).join()
    elif post.job == "chief":
        coordinate(post)
    elif job.mode == "sync":
        work_together(post)
    else:
        work_alone(post)


def _go_with_the_steward() -> None:
    os.read(0, 1)
    os._exit(1)


def coordinate(post: Post) -> None:
    """Lead asynchronous or model-parallel training."""
    from trainoff.engines.tf_cluster.coordinator import lead, prepare_tensorflow
    from trainoff.engines.tf_on_spark import fed

    prepare_tensorflow(post.assignment.job.cores)
    fetch(post)
    lead(post.assignment, fed.set_up if post.assignment.job.params["feed"] == "spark" else None)


def work_together(post: Post) -> None:
    """Train with all other workers, then answer questions."""
    from trainoff.engines.tf_cluster.coordinator import prepare_tensorflow

    job = post.assignment.job
    tf, tap = prepare_tensorflow(job.cores), tap_of(post)
    if job.params["feed"] == "spark":
        from trainoff.engines.tf_on_spark.fed import learn_together

        learn_together(tf, post.assignment, post.number, tap)
    else:
        from trainoff.engines.tf_cluster.allreduce_worker import learn

        learn(tf, post.assignment, post.number, lambda: fetch(post))
    serve_questions(tf, post, tap)


def work_alone(post: Post) -> None:
    """Serve the coordinator, lay ready the rows that are pushed, and answer questions."""
    from trainoff.engines.tf_cluster.coordinator import prepare_tensorflow
    from trainoff.engines.tf_on_spark.fed import Larder

    job = post.assignment.job
    tf, tap = prepare_tensorflow(job.cores), tap_of(post)
    fetch(post)
    larder = Larder(job) if job.params["feed"] == "spark" else None
    _server = serve("worker", post.number, ceil(job.cores), post.address)  # it ends with its last name
    serve_questions(tf, post, tap, larder)


def serve_questions(tf: Any, post: Post, tap: Tap, larder: Any = None) -> None:
    """Answer whatever is asked through the feed, and lay ready the rows that come between, until the end."""
    from trainoff.engines.tf_on_spark.label import Question, answer

    labels: Any = None
    while (item := tap.take()) is not None:
        if isinstance(item, Question):
            labels = answer(tf, post.assignment.job.model, item, tap, labels)
        else:
            for block in item:
                larder.lay(*block)


def fetch(post: Post) -> None:
    """Read the rows, where they lie in a store."""
    if post.storage:
        place: Any = post.assignment.job.data.x_train
        post.storage.fetch(Path(place.path).parent)


def tap_of(post: Post) -> Tap:
    """Where the process takes what Spark pushes to it."""
    from trainoff.engines.tf_on_spark.feed import Tap

    assert post.queues
    return Tap(*post.queues)


if __name__ == "__main__":
    main()
