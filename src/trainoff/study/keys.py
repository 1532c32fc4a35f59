"""The catalogue of keys that a study file may set: their type, range, default and meaning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trainoff.study.fault import FAULT
from trainoff.study.schema import Key


def _by_name(keys: Iterable[Key]) -> dict[str, Key]:
    return {key.name: key for key in keys}


PARAMS = _by_name(
    [
        Key("optimizer", str, "how a gradient becomes a step", "momentum", ("sgd", "momentum", "adam", "l-bfgs")),
        Key(
            "learning_rate",
            float,
            "the size of a step (the peak, where a schedule varies it)",
            0.05,
            above=0,
            maximum=1000,
        ),
        Key(
            "momentum",
            float,
            "how much of the last step goes on; for `momentum` only",
            0.9,
            minimum=0,
            maximum=0.9999,
        ),
        Key("schedule", str, "how the rate changes during training", "one-cycle", ("constant", "one-cycle")),
        Key("batch_size", int, "rows per step", 128, minimum=1, maximum=10**9),
        Key(
            "batch_per",
            str,
            "whether batch_size is of all workers together or of each",
            "global",
            ("global", "worker"),
        ),
        Key("epochs", int, "how often every row is seen", 5, minimum=1, maximum=10**6),
        Key(
            "hidden",
            list,
            "the sizes of the hidden layers",
            [128],
            minimum=1,
            maximum=100,
            item=Key("hidden", int, "the size of one layer", minimum=1, maximum=10**6),
        ),
        Key(
            "channels",
            list,
            "the channels that each convolution of a cnn puts out",
            [8, 16],
            minimum=1,
            maximum=20,
            item=Key("channels", int, "the channels of one", minimum=1, maximum=10_000),
        ),
        Key("kernel", int, "the height and width of a cnn's convolutions", 5, minimum=1, maximum=100),
        Key("activation", str, "what a hidden unit computes", "relu", ("relu", "sigmoid", "tanh")),
        Key("l2", float, "weight of the squared weights in the loss", 0.0, minimum=0, maximum=10**6),
        Key("train_rows", int, "train on this many rows; all of them by default", minimum=1, maximum=10**9),
        Key(
            "snapshot_every",
            int,
            "samples between two snapshots; a third of an epoch by default",
            minimum=1,
            maximum=10**12,
        ),
        Key(
            "stop",
            dict,
            "stop early: no better by `tol` for `patience` epochs",
            fields={
                "tol": Key("tol", float, "the least improvement of the loss", 1e-4, minimum=0, maximum=10**6),
                "patience": Key("patience", int, "epochs without it", 10, minimum=1, maximum=10**6),
            },
        ),
        FAULT,
        Key("seed", int, "repetition r is trained with this seed plus r", 0, minimum=0, maximum=2**31),
        Key("mode", str, "how workers agree; the engine's first mode by default"),
        Key("workers", int, "over how many workers a training is spread", 1, minimum=1, maximum=10_000),
    ]
)

_CORES = Key("cores", float, "CPU cores per worker", 1.0, above=0, maximum=1024)
_MEMORY = Key("memory_gb", float, "memory per worker; not limited by default", above=0, maximum=10**6)
LINK = (
    Key("bandwidth_mbit", float, "the speed of a lab node's link; as fast as the machine is by default", above=0),
    Key("latency_ms", float, "how long a lab node's packets are on their way", above=0, maximum=60_000),
)
_MACHINE = Key("machine", str, "the type of machine that it is")
NODE = {key.name: replace(key, default=None) for key in (_CORES, _MEMORY, *LINK, _MACHINE)}
MACHINE = _by_name(
    [
        _CORES,
        _MEMORY,
        LINK[0],
        Key("usd_per_hour", float, "what an hour of it costs, in dollars", minimum=0, maximum=10**6),
    ]
)

CLUSTER = _by_name(
    [
        Key("kind", str, "where engines run", "processes", ("processes", "lab", "hosts", "attach")),
        _CORES,
        _MEMORY,
        Key(
            "nodes",
            int,
            "the emulated nodes of a lab, one worker on each; or a list of unlike ones",
            minimum=1,
            maximum=1000,
            several=Key(
                "nodes",
                list,
                "unlike nodes",
                minimum=1,
                maximum=1000,
                item=Key("nodes", dict, "one node", fields=NODE),
            ),
        ),
        Key("first", dict, "how a lab's first node differs, which has drivers and masters, too", fields=NODE),
        *LINK,
        Key("machine", str, "the type of machine that a lab's nodes are, by its name in the catalogue"),
        Key("scale", float, "what part of the machine's cores a node has", 1.0, above=0, maximum=1),
        Key("memory_scale", float, "what part of its memory; as `scale` by default", above=0, maximum=1),
        Key("master", str, 'the Spark cluster to attach to: "spark://host:7077", "yarn" or "k8s://https://host:443"'),
        Key("scheduler", str, 'the Dask cluster to attach to: "tcp://host:8786" or "tls://host:8786"'),
        Key("head", str, 'the Ray cluster to attach to: "host:6379"'),
        Key(
            "hosts",
            list,
            "the machines to run on, one worker each, as ssh knows them",
            minimum=1,
            maximum=10_000,
            item=Key("hosts", str, 'a machine, as in "alpha" or "user@10.0.0.2:2222"'),
        ),
        Key("python", str, "the Python on the hosts; the same path as here by default"),
        Key("here", str, "this machine's address as the hosts see it; found by itself by default"),
        Key("ssh_config", str, "a configuration file for ssh; the user's own by default"),
        Key("executor_cores", int, "cores per Spark executor; all of a worker's by default", minimum=1, maximum=1024),
        Key("spark", dict, "any Spark properties", free=True),
        Key(
            "dask",
            dict,
            "the files by which a Dask cluster knows who calls, for tls",
            fields={name: Key(name, str, "the path of a PEM file") for name in ("ca_file", "cert", "key")},
        ),
    ]
)
ADDRESSES = {  # by cluster software: the key that names a cluster of it, and an example
    "spark": ("master", "spark://host:7077"),
    "dask": ("scheduler", "tcp://host:8786"),
    "ray": ("head", "host:6379"),
}
OF_SOFTWARE = {  # keys that only its engines know
    "executor_cores": "spark",
    "spark": "spark",
    "dask": "dask",
    **{key: software for software, (key, _) in ADDRESSES.items()},
}

OF_HOSTS = ("hosts", "python", "here", "ssh_config")  # keys that say something only with kind = "hosts"

LIMITS = _by_name(
    [
        Key("timeout_s", float, "seconds after which a trial is ended", 900.0, above=0, maximum=10**8),
        Key(
            "stall_s",
            float,
            "seconds without progress after which a trial is ended",
            120.0,
            above=0,
            maximum=10**8,
        ),
    ]
)

TOP = _by_name(
    [
        Key("name", str, "the study's name; the file's name by default", named=True),
        Key("workload", str, "the dataset and the model to train on it"),
        Key(
            "engines",
            list,
            "the training systems to compare",
            minimum=1,
            item=Key("engines", str, "an engine's name"),
        ),
        Key(
            "targets",
            list,
            "the values of the metric to time",
            maximum=100,
            item=Key("targets", float, "one of them", above=0, maximum=1),
        ),
        Key(
            "repeat",
            int,
            "how often every trial is repeated, each time with another seed",
            1,
            minimum=1,
            maximum=1000,
        ),
    ]
)

WORKLOAD = _by_name(
    [
        Key(
            "data",
            str,
            "the path of a new workload's data, from the study file's folder, or a dataset's name",
        ),
        Key("about", str, "what a new workload is, in a few words", ""),
        Key("model", str, "what is trained", "mlp", ("mlp", "cnn", "logreg")),
        Key("metric", str, "what is measured on the test rows", "accuracy", ("accuracy", "error", "auc", "log-loss")),
    ]
)
