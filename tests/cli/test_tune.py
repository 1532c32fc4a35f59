"""`trainoff tune` with real engines on a small workload."""

import json
import shutil
import signal
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest

from helpers import running
from helpers.running import HANGS_S, assert_nothing_survives, command, environment, trainoff, wait_until
from trainoff import data, engines, study
from trainoff.data.split import hold_out_validation
from trainoff.records import Store
from trainoff.runner.runner import Runner, RunObserver
from trainoff.tuning.engine_study import engine_studies_of
from trainoff.tuning.results import PruningRule, loss_curve

pytestmark = pytest.mark.cluster

TOO_SLOW = """
workload = "digits-mlp"
engines = [{engines}]
targets = [0.8]
[params]
learning_rate = 0.0004
epochs = 30
"""


def write_study(folder: Path, *engines: str, text: str = TOO_SLOW) -> Path:
    """Write a study whose learning rate is too small to reach its target."""
    return running.study(folder, *engines, name="slow", template=text)


def tune(path: Path, *more: object, **env: str) -> subprocess.CompletedProcess[str]:
    return trainoff("tune", path, "--minutes", 30, "--out", path.parent / "out", *more, cwd=None, **env)


def records(path: Path) -> dict[str, float]:
    """Return when each record of a search was written, by its folder."""
    return {found.parent.name: found.stat().st_mtime for found in path.parent.glob("out/slow-tune/*/record.json")}


def test_a_bad_recipe_is_beaten_and_the_tuned_study_runs(tmp_path: Path) -> None:
    path = write_study(tmp_path, "numpy")
    done = tune(path, "--candidates", 3, "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["engines"]
    assert found["verdict"] == "faster", found["sentence"]
    assert found["race"]["reached"] == [5, 0]
    assert found["tried"][0]["values"] == {}  # the recipe comes first
    assert len(found["tried"]) == 3

    tuned = tmp_path / "slow-tuned.toml"
    tables = tomllib.loads(tuned.read_text())
    assert tables["engine"]["numpy"] == found["winner"]
    assert found["sentence"] in tuned.read_text()
    assert trainoff("plan", tuned).returncode == 0
    ran = trainoff("run", tuned, "--out", tmp_path / "out", "--json")
    assert ran.returncode == 0, ran.stderr
    (record,) = json.loads(ran.stdout)
    assert record["study"] == "slow-tuned"
    assert record["time_to_target"]["0.8"] is not None
    assert {key: record["params"][key] for key in found["winner"]} == found["winner"]


def test_tuning_needs_no_test_rows(tmp_path: Path) -> None:
    """Once the validation rows are cached, a search works without the dataset with the test rows."""
    cache = str(tmp_path / "cache")
    assert trainoff("data", "get", "validation-of:digits", TRAINOFF_CACHE=cache).returncode == 0
    shutil.rmtree(tmp_path / "cache" / "data" / "digits")
    path = write_study(tmp_path, "numpy")
    done = tune(path, "--candidates", 3, "--rounds", 1, TRAINOFF_CACHE=cache)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "cache" / "data" / "digits").exists()
    for found in tmp_path.glob("out/slow-tune/*/record.json"):
        dataset = json.loads(found.read_text())["dataset"]
        assert (dataset["name"], dataset["train_rows"], dataset["test_rows"]) == ("validation-of:digits", 1149, 288)


def test_validation_rows_are_training_rows_and_disjoint() -> None:
    whole = data.get("digits")
    numbered = whole.x_train.copy()
    numbered[:, 0] = np.arange(len(numbered))
    parts = hold_out_validation(type(whole)(**{**vars(whole), "x_train": numbered}))
    train, held = (np.asarray(part)[:, 0].astype(int) for part in (parts.x_train, parts.x_test))
    assert sorted([*train, *held]) == list(range(len(whole.x_train)))
    assert np.array_equal(whole.y_train[held], parts.y_test)
    assert len(held) == pytest.approx(len(numbered) / 5, abs=1)


def test_sparse_rows_can_be_split() -> None:
    whole = data.get("clicks:rows=2000")
    found = data.get("validation-of:clicks:rows=2000")
    assert found.sparse
    assert len(found.x_train) + len(found.x_test) == len(whole.x_train)
    assert found.identity not in (whole.identity, data.identity("validation-of:clicks:rows=3000"))


def test_a_search_resumes_from_its_records(tmp_path: Path) -> None:
    path = write_study(tmp_path, "numpy")
    assert tune(path, "--candidates", 3, "--rounds", 0).returncode == 0
    first = records(path)
    assert len(first) == 3
    assert tune(path, "--candidates", 4, "--rounds", 0).returncode == 0
    second = records(path)
    assert first.items() <= second.items()
    assert len(second) == 4 + 6  # and three in a play-off of two rounds
    again = tune(path, "--candidates", 4, "--rounds", 0, "--json")
    assert records(path) == second
    assert json.loads(again.stdout)["engines"][0]["candidates"] == 4


def test_ctrl_c_keeps_what_was_measured_and_writes_the_best_so_far(tmp_path: Path) -> None:
    path = write_study(tmp_path, "numpy", "sklearn")
    argv = command("tune", path, "--minutes", 30, "--out", tmp_path / "out")
    run = subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: len(records(path)) >= 4, run)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=HANGS_S)
    assert run.returncode == 130
    assert "stopped; " in output
    assert "the same command goes on from here" in output
    assert "sklearn: not searched, it was stopped before its turn." in output
    assert_nothing_survives(tmp_path)
    tuned = tmp_path / "slow-tuned.toml"
    assert "It was stopped early" in tuned.read_text()
    assert "numpy" in tomllib.loads(tuned.read_text())["engine"]
    assert trainoff("plan", tuned).returncode == 0


def test_every_engine_is_tuned_by_its_own_keys(tmp_path: Path) -> None:
    path = write_study(tmp_path, "sklearn", "numpy")
    done = tune(path, "--candidates", 3, "--rounds", 1, "--json", "--set", "train_rows=1400")
    found = {one["engine"]: one for one in json.loads(done.stdout)["engines"]}
    assert found["sklearn"]["winner"]
    assert found["numpy"]["winner"]
    assert found["numpy"]["verdict"] == "undecided"  # one round decides nothing
    tables = tomllib.loads((tmp_path / "slow-tuned.toml").read_text())
    assert tables["params"]["train_rows"] == 1400  # the search itself trained on 1,149 rows
    assert tables["engine"].keys() == {"sklearn", "numpy"}


def test_a_candidate_that_cannot_win_is_stopped_and_its_curve_is_kept(tmp_path: Path) -> None:
    path = write_study(tmp_path, "numpy", text=TOO_SLOW.replace("epochs = 30", "epochs = 200000"))
    data.get("validation-of:digits")
    (engine_study,) = engine_studies_of(study.read(path, engines.facts()))
    store = Store(tmp_path / "out")
    task = engine_study.task(engine_study.recipe, store)
    rule = PruningRule(best_s=0.5)
    task.give_up = lambda state: (
        rule.give_up(state) if state.snapshots else None
    )  # a slow machine may have no snapshot in that time
    (record,) = Runner(store, RunObserver()).run([task]).records
    assert record.status == "timeout"
    assert str(record.reason).startswith("given up after")
    assert 0 < (record.samples_seen or 0) < 200000 * 1149
    assert record.test_metrics["accuracy"] > 0
    assert loss_curve(store.folder, record)
    assert not engine_study.task(engine_study.recipe, store).to_run  # it is not run again


def test_no_trial_reaches_the_target(tmp_path: Path) -> None:
    path = write_study(tmp_path, "numpy", text=TOO_SLOW.replace("[0.8]", "[1.0]"))
    done = tune(path, "--candidates", 2)
    assert done.returncode == 1
    assert "No trial reached 100%, so no file was written; give the study an easier target" in done.stdout
    assert not (tmp_path / "slow-tuned.toml").exists()
    assert len(records(path)) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--minutes", "0"], "--minutes 0: expected a number of minutes above 0"),
        (["--minutes", "nan"], "--minutes nan: expected a number of minutes above 0"),
        (["--minutes", "0.001"], "--minutes 0.001 is too little: the recipe alone takes about"),
        (["--minutes", "5", "--target", "0.7"], "--target 0.7: it is not among the study's targets; they are 0.8"),
        (["--minutes", "5", "--candidates", "0"], "--candidates 0: expected at least 1, which is the recipe"),
        (["--minutes", "5", "--rounds", "-1"], "--rounds -1: expected 0 or more; 5 give a verdict"),
        (["--minutes", "5", "--engine", "torch"], "--engine torch: it is not among the study's engines"),
        (["--minutes", "5", "--set", "targets=[]"], "digits-mlp has no targets to tune for"),
        (["--minutes", "5", "-o", "slow.toml"], "slow.toml: that is the study itself; choose another file with -o"),
        (["--minutes", "5", "-o", "nowhere/x.toml"], "nowhere/x.toml: no file can be written there"),
    ],
)
def test_a_mistake_is_a_one_line_error(tmp_path: Path, options: list[str], sentence: str) -> None:
    write_study(tmp_path, "numpy")
    done = trainoff("tune", "slow.toml", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"trainoff: {sentence}")
    assert done.stderr.count("\n") == 1


def test_a_study_that_cannot_be_tuned_is_an_error(tmp_path: Path) -> None:
    two = 'engines = ["numpy"]\n[grid]\nworkload = ["digits-mlp", "mnist-mlp"]\n'
    (tmp_path / "two.toml").write_text(two)
    swept = tune(tmp_path / "two.toml")
    assert "an engine is tuned for one at a time; choose with --set workload=" in swept.stderr
    absent = tune(write_study(tmp_path, "needy"))
    assert absent.returncode == 2
    assert "none of the study's engines can be tuned here; needy: needs" in absent.stderr
