"""The shipped workloads, and those that a study changes or adds."""

from pathlib import Path

import pytest

from helpers.studies import error_of, study
from trainoff.models import FAMILIES
from trainoff.study import workloads
from trainoff.study.keys import params_of
from trainoff.study.schema import check

ONE = 'engines = ["numpy"]\n'


def test_the_shipped_workloads() -> None:
    shipped = workloads()
    assert list(shipped) == ["mnist-mlp", "mnist-cnn", "clicks-logreg", "mnist-large-mlp", "emnist-mlp", "digits-mlp"]
    assert {name: workload.data for name, workload in shipped.items()} == {
        "mnist-mlp": "mnist",
        "mnist-cnn": "mnist",
        "clicks-logreg": "clicks",
        "mnist-large-mlp": "mnist-large",
        "emnist-mlp": "emnist-digits",
        "digits-mlp": "digits",
    }
    assert shipped["mnist-mlp"].recipe["hidden"] == [800]
    assert shipped["mnist-mlp"].targets == (0.95, 0.97, 0.98)


def test_a_shipped_recipe_sets_every_key_of_its_model() -> None:
    optional = {"batch_per", "train_rows", "stop", "fault", "seed", "mode", "workers"}
    for workload in workloads().values():
        keys = params_of([FAMILIES[workload.model]])
        without = optional | ({"momentum"} if workload.recipe["optimizer"] == "sgd" else set())
        assert set(workload.recipe) == set(keys) - without
        assert workload.about


def test_the_values_of_a_shipped_recipe_are_what_the_keys_expect() -> None:
    for workload in workloads().values():
        keys = params_of([FAMILIES[workload.model]])
        for values in (workload.recipe, workload.stale):
            assert [repr(check(keys[name], value)) for name, value in values.items()] == [*map(repr, values.values())]


def test_a_new_workload_has_a_path_relative_to_the_study_file(tmp_path: Path) -> None:
    (tmp_path / "wine.csv").write_text("1,2\n")
    text = ONE + '[workload.wine]\ndata = "wine.csv"\nhidden = [5]\ntargets = [0.8]\n'
    (trial,) = study(tmp_path, text).trials()
    assert (trial.workload, trial.data) == ("wine", str(tmp_path / "wine.csv"))
    assert (trial.params["hidden"], trial.targets) == ([5], (0.8,))
    assert trial.params["optimizer"] == "momentum"  # the key's default


def test_a_trials_id_does_not_depend_on_where_the_data_are(tmp_path: Path) -> None:
    text = ONE + '[workload.wine]\ndata = "wine.csv"\n'
    ids = set()
    for place in (tmp_path / "here", tmp_path / "there"):
        place.mkdir()
        (place / "wine.csv").write_text("1,2\n")
        ids |= {trial.id("hash of the data") for trial in study(place, text).trials()}
    assert len(ids) == 1


def test_a_new_workload_may_use_a_shipped_dataset(tmp_path: Path) -> None:
    (trial,) = study(tmp_path, ONE + '[workload.deep]\ndata = "mnist"\nhidden = [9, 9]\n').trials()
    assert (trial.workload, trial.data, trial.params["hidden"]) == ("deep", "mnist", [9, 9])


def test_several_workloads_with_their_own_overrides(tmp_path: Path) -> None:
    text = (
        ONE + "targets = [0.5]\n[grid]\nworkload = ['digits-mlp', 'mnist-mlp']\n"
        "[workload.mnist-mlp]\nepochs = 1\ntargets = [0.6]\n"
    )
    found = {trial.workload: (trial.params["epochs"], trial.targets) for trial in study(tmp_path, text).trials()}
    assert found == {"digits-mlp": (20, (0.5,)), "mnist-mlp": (1, (0.6,))}


def test_a_trial_has_only_the_parameters_of_its_model(tmp_path: Path) -> None:
    def params(workload: str) -> set[str]:
        (trial,) = study(tmp_path, ONE + f'workload = "{workload}"\n').trials()
        return set(trial.params)

    assert params("mnist-cnn") - params("mnist-mlp") == {"channels", "kernel"}
    assert params("mnist-mlp") - params("clicks-logreg") == {"hidden", "activation"}


def test_an_own_sparse_workload_uses_sgd_by_default(tmp_path: Path) -> None:
    text = ONE + '[workload.ads]\ndata = "clicks"\nmodel = "logreg"\nmetric = "auc"\n'
    (trial,) = study(tmp_path, text).trials()
    assert (trial.params["optimizer"], trial.params["schedule"], trial.metric) == ("sgd", "constant", "auc")


MISTAKES = {
    "neither shipped nor new": (
        "[workload.mnist-mpl]\nepochs = 3",
        "my.toml, line 2: `mnist-mpl` does not ship with trainoff; did you mean `mnist-mlp`?",
    ),
    "new without data": (
        "[workload.wine]\nepochs = 3",
        "my.toml, line 2: `wine` does not ship with trainoff; a new one needs `data`, the path of its rows",
    ),
    "data that is not there": (
        '[workload.wine]\ndata = "wine.csv"',
        'my.toml, line 3: `data` is "wine.csv", which does not exist; give a path from the study '
        "file's folder, or one of clicks, digits, emnist-digits, mnist, mnist-large, open-bandit",
    ),
    "dataset misspelt": (
        '[workload.wine]\ndata = "mnits"',
        'my.toml, line 3: `data` is "mnits", which does not exist; did you mean `mnist`?',
    ),
    "data path too long": (
        f'[workload.wine]\ndata = "{"x" * 5000}"',
        f'my.toml, line 3: `data` is "{"x" * 37}...", which does not exist; give a path from the study '
        "file's folder, or one of clicks, digits, emnist-digits, mnist, mnist-large, open-bandit",
    ),
    "other data under a shipped name": (
        '[workload.mnist-mlp]\ndata = "my.toml"',
        "my.toml, line 3: `data` of `mnist-mlp` cannot be changed, because that workload ships with "
        "trainoff; give yours another name",
    ),
    "unknown model": (
        '[workload.wine]\ndata = "my.toml"\nmodel = "cnm"',
        'my.toml, line 4: `model` is "cnm"; expected one of mlp, cnn, logreg; did you mean `cnn`?',
    ),
    "unknown key": (
        '[workload.wine]\ndata = "my.toml"\nhiden = [3]',
        "my.toml, line 4: `hiden` is not a key of [workload.wine]; did you mean `hidden`?",
    ),
    "name with a slash": (
        '[workload."a/b"]\ndata = "my.toml"',
        'my.toml, line 2: `workload` is "a/b"; '
        "expected at most 100 letters, digits, - _ or ., the first a letter or digit",
    ),
    "several and no choice": (
        "[workload.mnist-mlp]\n[workload.digits-mlp]",
        'my.toml, line 2: there are several workloads; choose in [grid], as in workload = ["mnist-mlp", "digits-mlp"]',
    ),
    "a name and a table": (
        'workload = "digits-mlp"\n[workload.digits-mlp]\nepochs = 1',
        "my.toml, line 3: TOML cannot have both `workload = ...` and [workload.NAME]; leave out the "
        "former: a single [workload.NAME] is used by itself, of several choose in [grid] workload = [...]",
    ),
    "not a table": (
        "[workload]\nwine = 3",
        "my.toml, line 3: `workload.wine` is 3; expected a table, as in [workload.wine]",
    ),
}


@pytest.mark.parametrize(("text", "error"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_a_one_line_error(text: str, error: str, tmp_path: Path) -> None:
    assert error_of(tmp_path, ONE + text) == error
