"""A study in three lines: the engines that the tests of study/ know, and a way to write and read a file."""

from pathlib import Path

import pytest

from trainoff.engines.contract import Knob
from trainoff.errors import TrainoffError
from trainoff.study import EngineFacts, Study, read

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

HEAD = 'workload = "digits-mlp"\nengines = ["numpy", "torch"]\n'


def study(folder: Path, text: str, **asked: object) -> Study:
    """Write a study file into a folder and read it."""
    path = folder / "my.toml"
    path.write_text(text, encoding="utf-8")
    return read(path, ENGINES, **asked)  # type: ignore[arg-type]  # tests hand on what they are given


def sentence(folder: Path, text: str, **asked: object) -> str:
    """The error that a study file is answered with, less the folder's name."""
    with pytest.raises(TrainoffError) as caught:
        study(folder, text, **asked)
    return str(caught.value).removeprefix(f"{folder}/")
