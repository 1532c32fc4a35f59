"""Write and read study files, with the engines that the tests of study/ know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainoff.engines.contract import Knob
from trainoff.errors import TrainoffError
from trainoff.models import FAMILIES
from trainoff.study import EngineFacts, Installed, Study, read
from trainoff.study.source import KeyPath

ENGINES = {
    "numpy": EngineFacts("numpy"),
    "sklearn": EngineFacts("sklearn"),
    "torch": EngineFacts(
        "torch",
        modes=("single", "sync", "async", "local"),
        knobs={
            "tau": Knob(int, 10, "local steps between two averages", minimum=1),
            "feed": Knob(str, "memory", "where rows come from", choices=("memory", "disk")),
        },
    ),
    "spark-mllib": EngineFacts(
        "spark-mllib",
        modes=("sync",),
        knobs={"max_iter": Knob(int, 100, "iterations of L-BFGS", minimum=1)},
        cluster="spark",
    ),
}

INSTALLED = Installed(ENGINES, FAMILIES)

HEAD = 'workload = "digits-mlp"\nengines = ["numpy", "torch"]\n'
FULL = """
name = "quick"
workload = "mnist-mlp"
engines = ["numpy", "sklearn", "torch", "spark-mllib"]
targets = [0.97, 0.95]
repeat = 2

[params]                      # the same for all
optimizer = "momentum"
learning_rate = 0.1
schedule = "one-cycle"
batch_size = 256
epochs = 4
stop = { tol = 1e-3, patience = 5 }

[grid]                        # every combination
train_rows = [6000, 60000]
workers = [1, 2]

[engine.spark-mllib]          # what only this engine has
max_iter = 50

[cluster]
kind = "processes"
cores = 1
memory_gb = 2

[limits]
timeout_s = 600
"""
TEXT = """\
name = "a # no comment = 1"     # a comment with [brackets] and = signs
engines = [
  "numpy",                      # first
  'to]rch',
]
long = '''
[not.a.table]
key = 1'''
quotes = \"\"\"two at the end\\\"
""\"\"\"

[params]
stop = { tol = 1e-4, patience = 10 }
a.b . "c d" = 2

[ engine . "spark-mllib" ]
max_iter = 3

[[case]]
workers = 1
[[case]]
workers = 2
nested = [[1, 2],
          [3]]
[case.more]
deep = 1
["a\\u0062"]
x = 1
"""


def study(folder: Path, text: str, **asked: object) -> Study:
    """Write a study file into a folder and read it."""
    path = folder / "my.toml"
    path.write_text(text, encoding="utf-8")
    return read(path, INSTALLED, **asked)  # type: ignore[arg-type]  # passed on unchanged


def error_of(folder: Path, text: str, **asked: object) -> str:
    """Return the error that reading a study file raises, without the folder's name."""
    with pytest.raises(TrainoffError) as caught:
        study(folder, text, **asked)
    return str(caught.value).removeprefix(f"{folder}/")


def key_paths(value: Any, key_path: KeyPath = ()) -> list[KeyPath]:
    """Return every key path of a document as Python's reader sees it."""
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in pairs for found in ((*key_path, key), *key_paths(inner, (*key_path, key)))]
