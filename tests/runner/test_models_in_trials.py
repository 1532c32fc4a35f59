"""Every single-node engine with every model it has in real trials, and data that do not fit a model."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest

from helpers.running import only_record, records, trainoff
from trainoff import data
from trainoff.engines import get
from trainoff.runner.contract_tests import cases

pytestmark = pytest.mark.cluster

DENSE = ("mlp", "cnn")
ENGINES = {
    "numpy": ("mlp", "logreg"),
    "sklearn": ("mlp", "logreg"),
    "tensorflow": ("mlp", "cnn", "logreg"),
    "torch": ("mlp", "cnn", "logreg"),
    "jax": ("mlp", "cnn"),
}


def run(folder: Path, text: str, *options: str) -> tuple[int, str]:
    """Run a study; return the exit code and the output."""
    (folder / "my.toml").write_text(text)
    done = trainoff("run", folder / "my.toml", "--out", folder / "out", *options)
    return done.returncode, done.stdout + done.stderr


def study_text(model: str, dataset: str, *engines: str, more: str = "") -> str:
    named = ", ".join(f'"{engine}"' for engine in engines)
    return f'engines = [{named}]\n[workload.mine]\ndata = "{dataset}"\nmodel = "{model}"\n{more}'


def engines_with(model: str) -> list[str]:
    return [engine for engine, models in ENGINES.items() if model in models]


def test_the_engines_have_the_models_that_are_tested_here() -> None:
    assert {name: get(name).models for name in ENGINES} == {name: frozenset(models) for name, models in ENGINES.items()}


@pytest.mark.soak  # engines/test_conformance.py certifies all pairs; trials are certified where memory is measured
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("model", DENSE)
def test_every_dense_engine_and_model_is_certified(tmp_path: Path, model: str, optimizer: str) -> None:
    rate = {"sgd": 0.2, "momentum": 0.05, "adam": 0.01}[optimizer]
    more = f'optimizer = "{optimizer}"\nlearning_rate = {rate}\nepochs = 4\nbatch_size = 50\nhidden = [16]\n'
    more += "channels = [4]\nkernel = 3\n" if model == "cnn" else ""
    code, output = run(tmp_path, study_text(model, "digits", *engines_with(model), more=more))
    assert code == 0, output
    found = records(tmp_path / "out")
    assert sorted(record["engine"] for record in found) == sorted(engines_with(model))
    for record in found:
        assert_certified(record)
        assert record["test_accuracy"] > 0.7
    assert "All of them did the same arithmetic" in output


def assert_certified(record: dict[str, Any]) -> None:
    assert record["equivalence"]["verdict"] == "exact", (record["engine"], record["equivalence"])
    assert record["counts"].get("threads", 1) == 1
    assert record["isolation"]["threads"] == 1
    assert record["phases_s"]["import"] > 0
    assert record["engine"] == "numpy" or record["phases_s"]["compile"] > 0


def test_every_engine_with_logreg_trains_on_clicks(tmp_path: Path) -> None:
    text = study_text(
        "logreg", "clicks:rows=8000,bits=12", *engines_with("logreg"), more='metric = "auc"\ntargets = [0.7]\n'
    )
    code, output = run(tmp_path, text, "--set", "learning_rate=1.0")
    assert code == 0, output
    found = {record["engine"]: record for record in records(tmp_path / "out")}
    assert set(found) == set(engines_with("logreg"))
    for engine, record in found.items():
        expected = "different by design" if engine == "sklearn" else "exact"
        assert record["equivalence"]["verdict"] == expected, (engine, record["equivalence"])
        assert record["metric"] == "auc"
        assert record["test_metrics"]["auc"] > 0.7
        assert record["time_to_target"]["0.7"] is not None
        assert record["test_metrics"]["error"] > record["dataset"]["best_error"]
        assert "hidden" not in record["params"]
    aucs = [record["test_metrics"]["auc"] for engine, record in found.items() if engine != "sklearn"]
    assert max(aucs) - min(aucs) < 1e-3
    assert "reached auc 0.7 first" in output


def test_the_cnn_recipe_reaches_its_targets(tmp_path: Path) -> None:
    code, output = run(tmp_path, 'workload = "mnist-cnn"\nengines = ["torch"]\n')
    assert code == 0, output
    record = only_record(tmp_path / "out")
    assert record["params"]["epochs"] <= 3
    assert record["time_to_target"]["0.985"] is not None
    assert record["test_accuracy"] >= 0.985
    assert_certified(record)


def test_the_clicks_recipe_reaches_its_targets(tmp_path: Path) -> None:
    code, output = run(tmp_path, 'workload = "clicks-logreg"\nengines = ["numpy"]\n')
    assert code == 0, output
    record = only_record(tmp_path / "out")
    assert record["time_to_target"]["0.19"] is not None
    assert record["dataset"]["best_error"] < record["test_metrics"]["error"] < 0.19


def test_l_bfgs_is_different_by_design_and_unsupported_by_other_engines(tmp_path: Path) -> None:
    more = 'optimizer = "l-bfgs"\nactivation = "sigmoid"\nepochs = 60\nhidden = [32]\n'
    code, output = run(tmp_path, study_text("mlp", "digits", "numpy", "torch", more=more))
    assert code == 0, output
    found = {record["engine"]: record for record in records(tmp_path / "out")}
    assert found["numpy"]["equivalence"]["verdict"] == "different by design"
    assert found["numpy"]["equivalence"]["reason"] == "L-BFGS of scipy, every iteration on all rows"
    assert found["numpy"]["test_accuracy"] > 0.9
    passes = found["numpy"]["samples_seen"] / found["numpy"]["dataset"]["train_rows"]
    assert found["numpy"]["steps"] <= passes <= found["numpy"]["counts"]["evaluations"]
    assert found["torch"]["status"] == "unsupported"
    assert found["torch"]["reason"] == "torch has no l-bfgs for the model mlp; it has sgd, momentum, adam"


@pytest.mark.parametrize(
    ("model", "dataset", "engine", "sentence"),
    [
        ("cnn", "clicks:rows=1000,bits=10", "torch", "has sparse rows, which only the model logreg takes, not cnn"),
        ("mlp", "clicks:rows=1000,bits=10", "numpy", "has sparse rows, which only the model logreg takes, not mlp"),
        ("logreg", "digits", "numpy", "digits has dense rows, and the model logreg takes sparse ones; use the model"),
        ("cnn", "plain.csv", "torch", "has rows of 3 features that are no pictures, and a cnn needs pictures"),
        ("logreg", "three.svm", "numpy", "three.svm has 3 classes; logistic regression tells two apart"),
        ("mlp", "nan.csv", "numpy", "row 2, column 'a' is missing, NaN or infinite; fill it or leave it out"),
        ("mlp", "labels.csv", "numpy", "the label 0.5 is not a whole number; labels must be classes, not quantities"),
        ("mlp", "parts.npz", "numpy", "the features of the training and the test part differ in shape: [3] and [4]"),
        ("logreg", "bad.svm", "numpy", "line 2"),
    ],
)  # fmt: skip
def test_data_that_do_not_fit_the_model_are_an_error(
    tmp_path: Path, model: str, dataset: str, engine: str, sentence: str
) -> None:
    rows = "".join(f"{i % 7},{i % 5},{i % 3},{i % 3}\n" for i in range(50))
    (tmp_path / "plain.csv").write_text("a,b,c,label\n" + rows)
    (tmp_path / "nan.csv").write_text("a,b,label\n1,2,0\nNaN,2,1\n" + "1,2,0\n3,4,1\n" * 9)
    (tmp_path / "labels.csv").write_text("a,b,label\n1,2,0.5\n" + "1,2,0\n3,4,1\n" * 9)
    (tmp_path / "three.svm").write_text("".join(f"{i % 3} {i % 5 + 1}:1\n" for i in range(50)))
    (tmp_path / "bad.svm").write_text("1 1:1\n0 2:nan\n" + "1 1:1\n0 2:1\n" * 9)
    y = np.arange(20) % 2
    np.savez(tmp_path / "parts.npz", x_train=np.ones((20, 3)), y_train=y, x_test=np.ones((20, 4)), y_test=y)
    code, output = run(tmp_path, study_text(model, dataset, engine))
    assert code != 0
    assert sentence in output
    assert "Traceback" not in output


@pytest.mark.parametrize("engine", ["torch", "tensorflow"])
def test_a_missing_gpu_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hides the GPUs of this machine
    code, output = run(tmp_path, study_text("mlp", "digits", engine), "--set", "device=cuda")
    record = only_record(tmp_path / "out")
    assert code == 0, output
    assert record["status"] == "unsupported"
    assert 'device = "cpu"' in record["reason"]
    assert record["traceback"] is None or "Refused" in record["traceback"]


@pytest.mark.soak  # numpy's does in tests/runner/test_runner.py
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_diverged_trial_keeps_its_curve(tmp_path: Path, model: str) -> None:
    more = "epochs = 5\nsnapshot_every = 200\n" + ("channels = [4]\nkernel = 3\n" if model == "cnn" else "")
    code, _ = run(tmp_path, study_text(model, "digits", *engines_with(model), more=more), "--set", "learning_rate=1000")
    assert code == 1
    found = {record["engine"]: record["status"] for record in records(tmp_path / "out")}
    assert found == dict.fromkeys(engines_with(model), "diverged")
    curves = [polars.read_parquet(path) for path in (tmp_path / "out").glob("*/*/curve.parquet")]
    assert len(curves) == len(engines_with(model))
    assert all(len(curve) for curve in curves)


def test_the_contract_tests_cover_every_model_an_engine_has() -> None:
    for engine, models in ENGINES.items():
        names = [case.name for case in cases(get(engine))]
        for model in models:
            assert any(name.startswith(f"{model}: ") for name in names)


def test_training_on_a_criteo_log(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with gzip.open(tmp_path / "day.tsv.gz", "wt") as file:
        for _ in range(3000):
            number, category = int(rng.integers(0, 100)), int(rng.integers(0, 20))
            label = int(rng.uniform() < 0.1 + 0.04 * category)
            numbers, categories = ["", str(number), *[""] * 11], [f"{category:08x}", *[f"{i:08x}" for i in range(25)]]
            file.write("\t".join([str(label), *numbers, *categories]) + "\n")
    code, output = run(tmp_path, study_text("logreg", "day.tsv.gz", "numpy", more='metric = "auc"\ntargets = [0.6]\n'))
    assert code == 0, output
    assert only_record(tmp_path / "out")["test_metrics"]["auc"] > 0.6


@pytest.mark.soak
def test_peak_memory_of_cnns_stays_near_the_size_of_the_data(tmp_path: Path) -> None:
    """The bound is on what the peak exceeds that of the same network on few rows."""
    data.get("mnist")
    engines = ("tensorflow", "torch", "jax")
    named = ", ".join(f'"{engine}"' for engine in engines)
    text = (
        f'workload = "mnist-cnn"\nengines = [{named}]\n[grid]\ntrain_rows = [1000, 60000]\n'
        "[params]\nepochs = 1\nbatch_size = 128\n"
    )
    code, output = run(tmp_path, text)
    assert code == 0, output
    peaks = {
        (record["engine"], record["params"]["train_rows"]): record["peak_memory_bytes"]
        for record in records(tmp_path / "out")
    }
    for engine in engines:
        assert peaks[engine, 60_000] - peaks[engine, 1000] <= 1.3 * 59_000 * 784 * 4, engine


def test_peak_memory_stays_near_the_size_of_the_data(tmp_path: Path) -> None:
    """It exceeds that with a tiny dataset by at most 1.3 times the training set in float32."""
    data.get("mnist")
    engines = ", ".join(f'"{engine}"' for engine in ENGINES)
    text = (
        f'engines = [{engines}]\n[grid]\nworkload = ["digits-mlp", "mnist-mlp"]\n[params]\nepochs = 1\nhidden = [64]\n'
    )
    code, output = run(tmp_path, text)
    assert code == 0, output
    found = {(record["engine"], record["workload"]): record for record in records(tmp_path / "out")}
    whole = 70_000 * 784 * 4
    for engine in ENGINES:
        small, large = found[engine, "digits-mlp"], found[engine, "mnist-mlp"]
        assert large["peak_memory_bytes"] - small["peak_memory_bytes"] <= 1.3 * whole, engine
        assert_certified(small)
        assert_certified(large)
