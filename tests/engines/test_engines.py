"""What all engines share: the hash of their source, and keys that have no effect in a mode."""

import re
from pathlib import Path

import pytest

from trainoff import engines
from trainoff.engines import source_hash
from trainoff.study import read

HERE = Path(engines.__file__).parent


@pytest.mark.parametrize(
    ("engine", "file"),
    [
        ("numpy", "numpy.py"),
        ("torch-ddp", "torch/ddp_worker.py"),
        ("ray-torch", "torch/network.py"),
        ("tf-ps", "tensorflow/network.py"),
        ("tf-on-spark", "tf_cluster/allreduce_worker.py"),
        ("spark-average", "numpy.py"),
        ("dask-sklearn", "sklearn.py"),
        ("dask-average", "shared/local_sgd.py"),
    ],
)
def test_a_change_of_a_module_that_an_engine_uses_changes_its_hash(monkeypatch, engine, file):
    before, real = source_hash(engines.get(engine)), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: real(path) + b"#" * (path == HERE / file))
    assert source_hash(engines.get(engine)) != before


def test_a_change_of_another_engine_does_not_change_its_hash(monkeypatch):
    before, real = source_hash(engines.get("numpy")), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: real(path) + b"#" * ("torch" in path.parts))
    assert source_hash(engines.get("numpy")) == before


def test_every_attribute_that_close_checks_is_set_by_the_engine():
    for path in sorted(HERE.rglob("*.py")):
        source = path.read_text()
        for name in re.findall(r'hasattr\(self, "(\w+)"\)', source):
            assert re.search(rf"self\.{name}\b.* = |    {name}: ", source), f"{path}: {name}"


@pytest.mark.parametrize(
    ("engine", "text", "trials"),
    [
        ("numpy", 'optimizer = "l-bfgs"\n[grid]\nlearning_rate = [0.1, 0.2]', 1),
        ("numpy", 'optimizer = "sgd"\n[grid]\nlearning_rate = [0.1, 0.2]', 2),
        ("dask-sklearn", 'mode = "local"\n[grid]\ncandidates = [2, 3]', 1),
        ("dask-sklearn", 'mode = "search"\n[grid]\ntau = [2, 3]', 1),
        ("dask-sklearn", 'mode = "search"\n[grid]\ncandidates = [2, 3]', 2),
    ],
)
def test_a_key_without_effect_makes_no_further_trials(tmp_path, engine, text, trials):
    path = tmp_path / "one.toml"
    path.write_text(f'workload = "digits-mlp"\nengines = ["{engine}"]\n[params]\n{text}\n')
    found = read(path, engines.facts()).trials()
    assert len({trial.id("1", "2", "3") for trial in found}) == trials
