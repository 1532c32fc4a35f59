"""Engines that misbehave, installed by entry points like those of a third party."""

import contextlib
import dataclasses
import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from trainoff.engines import Missing
from trainoff.engines.dask import DaskAverage
from trainoff.engines.numpy import Numpy, NumpyNetwork
from trainoff.engines.ray import RayTorch
from trainoff.engines.spark import SparkAverage
from trainoff.engines.tf_on_spark import TfOnSpark
from trainoff.engines.torch_ddp import TorchDdp
from trainoff.runner.sampler import LONGEST_S

HANGS_S = 300.0
FOREVER_S = 100_000  # until it is killed


class Steady(Numpy):
    """Train correctly, but slowly enough to be killed in any phase."""

    name = "steady"

    def train(self, job, watch):
        for step in range(1, 31):
            time.sleep(0.05)
            watch.progress(step)
        super().train(job, watch)


class Family(Steady):
    """Steady with a worker and a daemon."""

    name = "family"
    modes = ("sync",)

    def open(self, job, watch):
        super().open(job, watch)
        sleep = f"import time; time.sleep({FOREVER_S})"
        job.cluster.spawn(job.cluster.nodes[0], [sys.executable, "-c", sleep], {}, "worker-0")
        subprocess.run([sys.executable, "-c", DAEMON], check=True)


DAEMON = f"import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep({FOREVER_S})"


class Gossip(Numpy):
    """Write lines to the events that are not events, and raise an error with brackets in its text."""

    name = "gossip"

    def train(self, job, watch):
        with Path(os.environ["TRAINOFF_EVENTS"]).open("w") as pipe:
            pipe.write('5\n{"a": 1}\n{"kind": "progress"}\nhello\n')
        raise ValueError("cannot open [/data/x] of [rows, features]")


class Unknown(Numpy):
    """Fail to tell the version."""

    name = "unknown-version"

    def version(self):
        raise RuntimeError("who am I?")


class Crasher(Numpy):
    """Raise in the middle of training."""

    name = "crasher"

    def train(self, job, watch):
        watch.progress(1)
        raise RuntimeError("the flux capacitor is empty")


class Exiter(Numpy):
    """Exit without an exception or an event."""

    name = "exiter"

    def train(self, job, watch):
        os._exit(3)


class Sleeper(Numpy):
    """Make one step and hang."""

    name = "sleeper"

    def train(self, job, watch):
        watch.progress(1)
        time.sleep(FOREVER_S)


class Scripter(Sleeper):
    """Print a script that a browser must not run, and hang."""

    name = "scripter"

    def train(self, job, watch):
        print("\x1b[31m<script>alert(1)</script>\x1b[0m", flush=True)
        super().train(job, watch)


class Hog(Numpy):
    """Use more memory than allowed."""

    name = "hog"

    def train(self, job, watch):
        taken = []
        for step in itertools.count(1):
            if step < 100:  # 3 GB are enough to be noticed
                taken.append(np.ones(4_000_000, np.float64))
            time.sleep(0.02)
            watch.progress(step)


class Leaver(Numpy):
    """Leave a daemon running."""

    name = "leaver"

    def open(self, job, watch):
        super().open(job, watch)
        subprocess.run([sys.executable, "-c", DAEMON], check=True)


class Liar(Numpy):
    """Predict other labels than the weights do."""

    name = "liar"

    def predict(self, x):
        return np.zeros(len(x), np.int64)


class Mute(Numpy):
    """Make no snapshot."""

    name = "mute"

    def train(self, job, watch):
        for step, _ in job.order.batches():
            watch.progress(step)


class OffByAPercent(Numpy):
    """Compute every gradient wrong by one per cent."""

    name = "off-by-a-percent"
    models = frozenset({"mlp"})

    def settle(self, values):
        return {**values, "schedule": "constant", "activation": "relu"}

    def open(self, job, watch):
        super().open(job, watch)
        self._learner.network = WrongNetwork(job.model, job.weights, job.order.batch_size)


class WrongNetwork(NumpyNetwork):
    def differentiate(self, x, y, rows):
        loss = super().differentiate(x, y, rows)
        self.flat_gradient *= 1.01
        return loss


class Needy(Numpy):
    """Report a missing dependency until the file $NEEDY exists."""

    name = "needy"

    def missing(self):
        exists = Path(os.environ.get("NEEDY", "/nowhere")).exists()
        return [] if exists else [Missing("a left-handed screwdriver", "touch $NEEDY")]


class Picky(Numpy):
    """Refuse batches of more than eight rows."""

    name = "picky"

    def refuses(self, trial):
        return "picky takes at most 8 rows a batch" if trial.params["batch_size"] > 8 else None


SEND = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
    peer.sendall(bytes(20_000_000))
"""
RECEIVE = """
import socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print("port", server.getsockname()[1], flush=True)
    with server.accept()[0] as peer:
        while peer.recv(65536):
            pass
until = time.monotonic() + 3 * float(sys.argv[1])
while time.monotonic() < until:
    pass
print("done", flush=True)
"""


class Talker(Numpy):
    """Send twenty million bytes to a worker, which then computes for longer than the sampler's longest interval."""

    name = "talker"
    modes = ("sync",)

    def open(self, job, watch):
        super().open(job, watch)
        with watch.phase("cluster_start"):
            receiver = job.cluster.spawn(
                job.cluster.nodes[0],
                [sys.executable, "-c", RECEIVE, str(LONGEST_S)],
                {},
                "worker-0",
                ready=lambda process: process.says(r"^port \d+\n"),
                timeout_s=HANGS_S,
            )
            port = receiver.tail().split()[1]
            sender = job.cluster.spawn(job.cluster.nodes[1], [sys.executable, "-c", SEND, port], {}, "worker-1")
            sender.wait(HANGS_S)
            receiver.wait(HANGS_S)
        watch.count("bytes_sent", 20_000_000)


class Unlucky(Numpy):
    """Lose a worker to an exception."""

    name = "unlucky"
    modes = ("sync",)

    def train(self, job, watch):
        worker = job.cluster.spawn(job.cluster.nodes[0], [sys.executable, "-c", "{}['the key']"], {}, "worker-0")
        worker.wait(HANGS_S)
        raise ConnectionError("lost worker-0")


class Blunderer(DaskAverage):
    """Fail on the workers of a Dask cluster, in the third round."""

    name = "blunderer"

    @staticmethod
    def make_learner(job):
        learner = DaskAverage.make_learner(job)
        learner.step = functools.partial(blunder, learner.step)
        return learner


def blunder(step, number, rows, rate):
    if number == 3:
        raise LookupError("the third step is missing")
    return step(number, rows, rate)


ENOUGH = 600 * 2**20  # bytes that it allocates, besides what Python and its libraries use


class Glutton(DaskAverage):
    """Allocate memory on the workers of a Dask cluster, up to a limit, and hang."""

    name = "glutton"

    @staticmethod
    def make_learner(job):
        learner, eaten = DaskAverage.make_learner(job), []
        learner.step = functools.partial(eat, learner.step, eaten)
        return learner


def eat(step, eaten, number, rows, rate):
    if len(eaten) * 2**24 >= ENOUGH:
        time.sleep(FOREVER_S)
    eaten.append(np.ones(2**21))  # 16 MiB
    time.sleep(0.05)  # slowly, so that the sampler sees how it grows
    return step(number, rows, rate)


class Clumsy(SparkAverage):
    """Fail on the executors of a Spark cluster."""

    name = "clumsy"

    @staticmethod
    def make_learner(job):
        raise LookupError("no worker can be made")


class BrokenParams(dict):
    """Parameters whose optimizer cannot be read."""

    def __getitem__(self, name):
        if name == "optimizer":
            raise LookupError("no such parameter")
        return super().__getitem__(name)


class Stumbler(TfOnSpark):
    """Fail in the TensorFlow processes on the executors."""

    name = "stumbler"

    def _assignment(self, job, watch):
        return super()._assignment(dataclasses.replace(job, params=BrokenParams(job.params)), watch)


class Twice(TfOnSpark):
    """Start two TensorFlow clusters one after the other, and count the processes of each."""

    name = "twice"

    def _form_cluster(self, job, watch):
        super()._form_cluster(job, watch)
        before = self._process_counts()
        self._control.close()
        self._cluster.end()
        super()._form_cluster(job, watch)
        watch.note("processes", f"{before} then {self._process_counts()}")

    def _process_counts(self):
        def count_processes(parts):
            list(parts)
            group, count = os.getpgid(0), 0
            for pid in psutil.pids():
                with contextlib.suppress(ProcessLookupError):
                    count += os.getpgid(pid) == group
            yield count

        one_each = self.session.context.parallelize(range(self.session.executors), self.session.executors).barrier()
        return sorted(one_each.mapPartitions(count_processes).collect())


class Tripper(TorchDdp):
    """Fail in the workers of torchrun."""

    name = "tripper"

    def open(self, job, watch):
        super().open(dataclasses.replace(job, params=BrokenParams(job.params)), watch)


class Slipper(RayTorch):
    """Fail in the workers of Ray Train."""

    name = "slipper"

    def open(self, job, watch):
        super().open(dataclasses.replace(job, params=BrokenParams(job.params)), watch)


class Gated(Numpy):
    """Wait for a permit in the training, so that it is running until the test gives one."""

    name = "gated"

    def train(self, job, watch):
        wait_for_permit(lambda: watch.progress(1))
        super().train(job, watch)


class GatedFamily(Family):
    """Family that waits for a permit in the training, or with $PERMITS_AT = close when it is closed."""

    name = "gated-family"

    def train(self, job, watch):
        if os.environ.get("PERMITS_AT") != "close":
            wait_for_permit(lambda: watch.progress(1))
        Numpy.train(self, job, watch)

    def close(self):
        if os.environ.get("PERMITS_AT") == "close":
            wait_for_permit(lambda: None)
        super().close()


def wait_for_permit(beat):
    """Call `beat` until the folder $PERMITS holds a file, and remove that file; without $PERMITS, return at once.

    It fails if the folder does not exist: then the test is over.
    """
    start = time.monotonic()
    while "PERMITS" in os.environ and not take_permit(Path(os.environ["PERMITS"])):
        beat()
        time.sleep(0.02)
        assert time.monotonic() - start < 1800, "no permit was given"


def take_permit(permits):
    for permit in permits.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another trial has taken it
            permit.unlink()
            return True
    return False


class Deaf(Sleeper):
    """Make one step and hang, also on SIGTERM, which makes the file $HEARD."""

    name = "deaf"

    def train(self, job, watch):
        signal.signal(signal.SIGTERM, lambda *_: Path(os.environ.get("HEARD", "heard")).touch())
        super().train(job, watch)
