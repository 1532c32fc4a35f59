"""From a study to its trials: grids and cases, precedence, and the order."""

from pathlib import Path
from typing import Any

import pytest

from helpers.studies import HEAD, INSTALLED, error_of, study
from trainoff.study import Trial, nearest, read, workloads
from trainoff.study.grid import count

ALL = 'workload = "digits-mlp"\nengines = ["numpy", "torch", "spark-mllib"]\n'


def trials(folder: Path, text: str, engine: str, **asked: object) -> list[Trial]:
    return [trial for trial in study(folder, text, **asked).trials() if trial.engine == engine]


def param(folder: Path, text: str, key: str, **asked: object) -> Any:
    """Return the value of a parameter in the only trial of numpy."""
    (trial,) = trials(folder, text, "numpy", **asked)
    return trial.params[key]


def test_workers_do_not_multiply_a_single_node_engine(tmp_path: Path) -> None:
    text = ALL + "[grid]\nworkers = [1, 2, 4]"
    assert [trial.workers for trial in trials(tmp_path, text, "numpy")] == [1]
    assert sorted(trial.workers for trial in trials(tmp_path, text, "torch")) == [1, 2, 4]


def test_a_knob_multiplies_only_the_engines_that_have_it(tmp_path: Path) -> None:
    text = ALL + "[grid]\ntau = [1, 5]\nmax_iter = [10, 20, 30]"
    assert len(trials(tmp_path, text, "numpy")) == 1
    assert sorted(trial.params["tau"] for trial in trials(tmp_path, text, "torch")) == [1, 5]
    assert sorted(trial.params["max_iter"] for trial in trials(tmp_path, text, "spark-mllib")) == [10, 20, 30]
    assert "tau" not in trials(tmp_path, text, "numpy")[0].params


def test_the_default_mode_is_the_first_that_suits_the_workers(tmp_path: Path) -> None:
    found = trials(tmp_path, ALL + "[grid]\nworkers = [1, 2]", "torch")
    assert sorted((trial.workers, trial.mode) for trial in found) == [(1, "single"), (2, "sync")]


def test_a_mode_that_an_engine_lacks_is_kept_and_shown_as_unsupported(tmp_path: Path) -> None:
    text = ALL + '[params]\nmode = "async"\n[grid]\nworkers = [1, 2]'
    assert [(trial.mode, trial.workers) for trial in trials(tmp_path, text, "numpy")] == [("async", 1)]
    assert {trial.mode for trial in trials(tmp_path, text, "torch")} == {"async"}


def test_the_single_mode_has_one_worker(tmp_path: Path) -> None:
    text = ALL + '[params]\nmode = "single"\n[grid]\nworkers = [1, 2]'
    assert [trial.workers for trial in trials(tmp_path, text, "torch")] == [1]


def test_cases_vary_together_and_the_grid_multiplies_them(tmp_path: Path) -> None:
    text = HEAD + "[grid]\nepochs = [1, 2]\n[[case]]\ncores = 1\nworkers = 2\n[[case]]\ncores = 2\nworkers = 1"
    found = {(trial.cores, trial.workers, trial.params["epochs"]) for trial in trials(tmp_path, text, "torch")}
    assert found == {(1, 2, 1), (1, 2, 2), (2, 1, 1), (2, 1, 2)}


def test_cases_that_do_not_differ_for_an_engine_run_once(tmp_path: Path) -> None:
    text = HEAD + "[[case]]\nworkers = 1\ntau = 3\n[[case]]\nworkers = 2\ntau = 5"
    assert len(trials(tmp_path, text, "numpy")) == 1
    assert len(trials(tmp_path, text, "torch")) == 2


def test_the_same_value_twice_is_one_trial(tmp_path: Path) -> None:
    assert len(trials(tmp_path, HEAD + "[grid]\nlearning_rate = [1, 1.0]", "numpy")) == 1


def test_batch_per_worker_is_converted_to_the_whole_batch(tmp_path: Path) -> None:
    text = HEAD + '[params]\nbatch_size = 16\nbatch_per = "worker"\n[grid]\nworkers = [1, 4]'
    found = {trial.workers: trial.params["batch_size"] for trial in trials(tmp_path, text, "torch")}
    assert found == {1: 16, 4: 64}


def test_asynchronous_workers_may_have_batches_of_one_row(tmp_path: Path) -> None:
    text = HEAD + '[params]\nbatch_size = 1\nworkers = 4\nmode = "async"'
    assert [trial.workers for trial in trials(tmp_path, text, "torch")] == [4]


def test_the_batch_of_an_asynchronous_worker_is_not_multiplied(tmp_path: Path) -> None:
    text = HEAD + '[params]\nbatch_size = 16\nbatch_per = "worker"\nworkers = 4\nmode = "async"'
    assert [trial.params["batch_size"] for trial in trials(tmp_path, text, "torch")] == [16]


def test_only_trials_of_several_workers_have_a_fault(tmp_path: Path) -> None:
    text = (
        ALL + "[params]\nworkers = 2\n[[case]]\nepochs = 3\n[[case]]\nepochs = 3\nfault = { action = 'slow', node = 1 }"
    )
    found = [trial.params.get("fault") for trial in trials(tmp_path, text, "torch")]
    assert sorted(map(str, found)) == ["None", "{'action': 'slow', 'node': 1, 'at': 0.3, 'share': 0.25, 'for_s': None}"]
    assert ["fault" in trial.params for trial in trials(tmp_path, text, "numpy")] == [False]


def test_precedence_from_the_recipe_up_to_the_command_line(tmp_path: Path) -> None:
    text = 'engines = ["numpy"]\n[workload.digits-mlp]\n'
    assert param(tmp_path, text, "epochs") == workloads()["digits-mlp"].recipe["epochs"] == 20
    text = text.replace("[workload", "[params]\nepochs = 1\n[workload")
    assert param(tmp_path, text, "epochs") == 1
    text += "epochs = 2\n"
    assert param(tmp_path, text, "epochs") == 2
    text += "[engine.numpy]\nepochs = 3\n"
    assert param(tmp_path, text, "epochs") == 3
    text += "[grid]\nepochs = [4]\n"
    assert param(tmp_path, text, "epochs") == 4
    assert param(tmp_path, text, "epochs", overrides=["epochs=5"]) == 5
    assert param(tmp_path, text, "epochs", overrides=["engine.numpy.epochs=6", "epochs=5"]) == 6


def test_set_replaces_a_grid(tmp_path: Path) -> None:
    text = HEAD + "[grid]\nepochs = [1, 2, 3]\n"
    assert len(trials(tmp_path, text, "numpy")) == 3
    assert param(tmp_path, text, "epochs", overrides=["epochs=7"]) == 7
    found = study(tmp_path, text, overrides=["engine.numpy.epochs=7"]).trials()
    assert sorted((trial.engine, trial.params["epochs"]) for trial in found) == [
        ("numpy", 7), ("torch", 1), ("torch", 2), ("torch", 3),
    ]  # fmt: skip


def test_set_changes_every_part_of_a_study(tmp_path: Path) -> None:
    overrides = [
        "name=other", "workload=mnist-mlp", "repeat=2", "targets=[0.5]", "timeout_s=5",
        "cores=2", "optimizer=adam", "hidden=[3, 4]", "tau=7",
    ]  # fmt: skip
    found = study(tmp_path, HEAD, overrides=overrides)
    trial = next(trial for trial in found.trials() if trial.engine == "torch")
    assert (found.name, found.repeat, trial.workload, trial.data) == ("other", 2, "mnist-mlp", "mnist")
    assert (trial.targets, trial.limits.timeout_s, trial.cores) == ((0.5,), 5.0, 2.0)
    assert [trial.params[key] for key in ("optimizer", "hidden", "tau")] == ["adam", [3, 4], 7]


def test_the_last_set_of_a_key_wins(tmp_path: Path) -> None:
    assert param(tmp_path, HEAD, "epochs", overrides=["epochs=7", "epochs = 8"]) == 8


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("learning_rate=-1", "`learning_rate` is -1; expected a number above 0, at most 1,000"),
        ("learning_rate", "expected key=value, as in --set learning_rate=0.1"),
        ("learning_rate=", "`learning_rate` is an empty text; expected a number above 0, at most 1,000"),
        ("lerning_rate=1", "`lerning_rate` is not a key that can be set; did you mean `learning_rate`?"),
        ("params.epochs=1", "`params.epochs` is not a key that can be set; did you mean `epochs`?"),
        ("workload=digit-mlp", '`workload` is "digit-mlp"; expected one of mnist-mlp, mnist-cnn, clicks-logreg, '
         "mnist-large-mlp, emnist-mlp, digits-mlp; did you mean `digits-mlp`?"),
        ("name=a/b", '`name` is "a/b"; expected at most 100 letters, digits, - _ or ., '
         "the first a letter or digit"),
        ("engine.torhc.tau=1", "`torhc` is not an engine of the study; did you mean `torch`?"),
        ("engine.torch.tua=1", "`tua` is not a key of [engine.torch]; did you mean `tau`?"),
        ("engine.torch=1", "expected engine.NAME.key=value"),
        ("engines=numpy", "`engines` cannot be set here; choose among the study's engines with --engine"),
        ("batch_size=1", "a batch_size of 1 cannot be shared by the 2 workers of `torch`; "
         "expected at least one row per worker"),
    ],
)  # fmt: skip
def test_a_mistake_in_set_is_an_error_that_quotes_it(text: str, error: str, tmp_path: Path) -> None:
    assert error_of(tmp_path, HEAD + "[params]\nworkers = 2", overrides=[text]) == f"--set {text}: {error}"


def test_only_some_engines_of_a_study(tmp_path: Path) -> None:
    text = HEAD + "[params]\ntau = 3"  # a knob that numpy does not have
    assert {trial.engine for trial in study(tmp_path, text, only=["numpy"]).trials()} == {"numpy"}
    error = "--engine sklearn: it is not among the study's engines; they are numpy, torch"
    assert error_of(tmp_path, text, only=["sklearn"]) == error


def test_repeat_from_the_command_line(tmp_path: Path) -> None:
    assert study(tmp_path, HEAD + "repeat = 2", repeat=5).repeat == 5
    error = "--repeat 0: `repeat` is 0; expected a whole number from 1 to 1,000"
    assert error_of(tmp_path, HEAD, repeat=0) == error


def test_repetition_r_has_seed_r(tmp_path: Path) -> None:
    found = trials(tmp_path, HEAD + "repeat = 3", "numpy")
    assert [(trial.repetition, trial.seed) for trial in found] == [(1, 1), (2, 2), (3, 3)]
    found = trials(tmp_path, HEAD + "repeat = 2\n[params]\nseed = 40", "numpy")
    assert [trial.seed for trial in found] == [41, 42]


def test_trials_run_repetition_by_repetition_in_a_reproducible_random_order(tmp_path: Path) -> None:
    text = HEAD + f"repeat = 3\n[grid]\nepochs = {list(range(1, 21))}"
    found = study(tmp_path, text).trials()
    assert [(trial.repetition, trial.position) for trial in found] == [(r, p) for r in (1, 2, 3) for p in range(40)]
    orders = [
        tuple((trial.engine, trial.params["epochs"]) for trial in found if trial.repetition == r) for r in (1, 2, 3)
    ]
    assert len(set(orders)) == 3
    assert len({frozenset(order) for order in orders}) == 1
    assert found == study(tmp_path, text).trials()  # the order is reproducible
    assert found != study(tmp_path, text, overrides=["name=other"]).trials()


def test_a_trials_id_does_not_depend_on_the_study_or_the_order(tmp_path: Path) -> None:
    one = {trial.id("1.0") for trial in study(tmp_path, HEAD).trials()}
    other = {trial.id("1.0") for trial in study(tmp_path, HEAD + 'name = "other"\ntargets = [0.5]').trials()}
    assert one == other


def test_a_trial_is_the_same_after_json(tmp_path: Path) -> None:
    for trial in study(tmp_path, HEAD).trials():
        assert Trial.from_json(trial.to_json()) == trial


def test_ten_thousand_trials_are_the_most(tmp_path: Path) -> None:
    text = 'workload = "digits-mlp"\nengines = ["numpy"]\nrepeat = 1000\n[grid]\nl2 = '
    tens = [number / 10 for number in range(11)]
    assert len(study(tmp_path, text + str(tens[:10])).trials()) == 10_000
    assert error_of(tmp_path, text + str(tens)) == (
        "my.toml, line 5: the study has 11,000 trials, and at most 10,000 are allowed; "
        "the largest factors are `repeat` (1,000), `l2` (11)"
    )


def test_trials_are_counted_without_making_them(tmp_path: Path) -> None:
    found = study(tmp_path, ALL + "[grid]\nworkers = [1, 2]\ntau = [1, 2, 3]\n[[case]]\ncores = 1\n[[case]]\ncores = 2")
    assert [count(engine, found.layers) for engine in found.engines] == [2, 12, 4]


def test_the_nearest_name() -> None:
    assert nearest("TensorFlw", ["numpy", "tensorflow", "torch"]) == "tensorflow"
    assert nearest("zzz", ["numpy", "tensorflow", "torch"]) is None
    assert nearest("numpy" * 100_000, ["numpy"]) is None


def test_read_takes_a_string_as_path(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(HEAD)
    assert read(str(tmp_path / "a.toml"), INSTALLED).name == "a"


def test_asynchronous_trials_have_their_own_recipe_which_a_study_may_change(tmp_path: Path) -> None:
    head = 'workload = "mnist-mlp"\nengines = ["torch"]\n[params]\nworkers = 2\n'
    rules = {}
    for mode in ("sync", "async"):
        (trial,) = trials(tmp_path, head + f'mode = "{mode}"', "torch")
        rules[mode] = trial.params["optimizer"], trial.params["schedule"], trial.params["learning_rate"]
    assert rules == {"sync": ("momentum", "one-cycle", 0.4), "async": ("sgd", "constant", 0.4)}
    (trial,) = trials(tmp_path, head + 'mode = "async"\noptimizer = "adam"', "torch")
    assert trial.params["optimizer"] == "adam"


def test_an_engine_may_have_larger_workers_than_the_others(tmp_path: Path) -> None:
    text = ALL + "[engine.torch]\ncores = 3\nmemory_gb = 2\n[cluster]\ncores = 2"
    assert [(trial.cores, trial.memory_gb) for trial in trials(tmp_path, text, "torch")] == [(3, 2)]
    assert [(trial.cores, trial.memory_gb) for trial in trials(tmp_path, text, "numpy")] == [(2, None)]


HOSTS = ALL + '[cluster]\nkind = "hosts"\nhosts = ["alpha", "ann@10.0.0.2:2222", "gamma"]\nssh_config = "near/config"\n'


def test_every_host_has_a_worker_and_single_node_engines_run_on_this_machine(tmp_path: Path) -> None:
    (distributed,) = trials(tmp_path, HOSTS, "spark-mllib")
    assert (distributed.cluster, distributed.workers, distributed.params["hosts"]) == (
        "hosts",
        3,
        ["alpha", "ann@10.0.0.2:2222", "gamma"],
    )
    (alone,) = trials(tmp_path, HOSTS, "numpy")
    assert (alone.cluster, alone.workers) == ("processes", 1)
    assert "hosts" not in alone.params


def test_fewer_workers_in_a_grid_take_the_first_hosts(tmp_path: Path) -> None:
    found = trials(tmp_path, HOSTS + "[grid]\nworkers = [1, 2]", "spark-mllib")
    assert sorted(trial.params["hosts"] for trial in found) == [["alpha"], ["alpha", "ann@10.0.0.2:2222"]]


def test_a_trials_id_does_not_depend_on_ssh_settings(tmp_path: Path) -> None:
    (one,) = trials(tmp_path, HOSTS, "spark-mllib")
    (other,) = trials(tmp_path, HOSTS.replace("near", "far") + 'here = "10.0.0.9"\n', "spark-mllib")
    assert one.params["ssh_config"] == str(tmp_path / "near" / "config")
    assert one.id() == other.id()
    (elsewhere,) = trials(tmp_path, HOSTS.replace("gamma", "delta"), "spark-mllib")
    assert one.id() != elsewhere.id()
