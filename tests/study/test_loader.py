"""Reading study files, and the error for each mistake."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.studies import ENGINES, FULL, HEAD, INSTALLED, error_of, study
from trainoff.errors import TrainoffError
from trainoff.models import FAMILIES
from trainoff.study import EngineFacts, Installed, Limits, read

HOSTS = 'workload = "digits-mlp"\nengines = ["spark-mllib"]\n[cluster]\nkind = "hosts"\n'


def test_the_full_example(tmp_path: Path) -> None:
    read_study = study(tmp_path, FULL)
    trials = read_study.trials()
    assert (read_study.name, read_study.repeat) == ("quick", 2)
    # numpy and sklearn: 2 sizes; torch and spark-mllib: 2 sizes x 2 workers; all of it twice
    assert len(trials) == 2 * (2 + 2 + 4 + 4)
    spark = next(trial for trial in trials if trial.engine == "spark-mllib")
    assert spark.params["max_iter"] == 50
    assert spark.params["stop"] == {"tol": 1e-3, "patience": 5}
    assert spark.params["hidden"] == [800]  # from the workload's recipe
    assert (spark.cores, spark.memory_gb, spark.cluster) == (1.0, 2.0, "processes")
    assert spark.targets == (0.95, 0.97)
    assert spark.limits == Limits(timeout_s=600.0, stall_s=120.0)
    assert (spark.data, spark.model, spark.metric) == ("mnist", "mlp", "accuracy")


def test_the_smallest_study_has_two_lines(tmp_path: Path) -> None:
    trials = study(tmp_path, HEAD).trials()
    assert {trial.engine for trial in trials} == {"numpy", "torch"}
    assert {(trial.study, trial.workload, trial.seed) for trial in trials} == {("my", "digits-mlp", 1)}


def test_a_byte_order_mark_and_windows_line_ends_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_bytes(b"\xef\xbb\xbf" + HEAD.replace("\n", "\r\n").encode())
    assert len(read(tmp_path / "my.toml", INSTALLED).trials()) == 2
    assert error_of(tmp_path, HEAD.replace("\n", "\r\n") + "repeat = 0\r\n").startswith("my.toml, line 3:")


MISTAKES = {
    "unknown key": (
        'workload = "digits-mlp"\n\nenignes = ["numpy"]',
        "my.toml, line 3: `enignes` is not a study key; did you mean `engines`?",
    ),
    "unknown engine": (
        'workload = "digits-mlp"\nengines = [\n  "numpy",\n  "trch",\n]',
        "my.toml, line 4: `trch` is not an engine; did you mean `torch`?",
    ),
    "engine like no other": (
        'workload = "digits-mlp"\nengines = ["zzz"]',
        "my.toml, line 2: `zzz` is not an engine; the engines are numpy, sklearn, torch, spark-mllib",
    ),
    "duplicate engine": (
        'workload = "digits-mlp"\nengines = ["numpy", "numpy"]',
        "my.toml, line 2: `numpy` is among the engines twice; keep one",
    ),
    "no engines": (
        'workload = "digits-mlp"',
        'my.toml: `engines` is missing; name at least one, as in engines = ["numpy"]',
    ),
    "one engine": (
        'workload = "digits-mlp"\nengine = "numpy"',
        'my.toml, line 2: `engine` is "numpy"; did you mean `engines`, as in engines = ["numpy"]?',
    ),
    "engines in the grid": (
        'workload = "digits-mlp"\nengines = ["numpy"]\n[grid]\nengine = ["numpy", "torch"]',
        "my.toml, line 4: `engine` is not a key that [grid] can vary; "
        "did you mean `engines`, which belongs at the top of the file?",
    ),
    "another name of a parameter, at the top": (
        "lr = 0.1\n" + HEAD,
        "my.toml, line 1: `lr` is not a study key; did you mean `learning_rate`, which belongs in [params]?",
    ),
    "empty engines": (
        "engines = []",
        "my.toml, line 1: `engines` is an empty list; name at least one of numpy, sklearn, torch, spark-mllib",
    ),
    "engines as a text": (
        'engines = "numpy"',
        'my.toml, line 1: `engines` is "numpy"; expected a list, each value a text',
    ),
    "no workload": (
        'engines = ["numpy"]',
        "my.toml: `workload` is missing; name one of "
        "mnist-mlp, mnist-cnn, clicks-logreg, mnist-large-mlp, emnist-mlp, digits-mlp",
    ),
    "unknown workload": (
        'workload = "mnist-mpl"\nengines = ["numpy"]',
        "my.toml, line 1: `mnist-mpl` is not a workload; did you mean `mnist-mlp`?",
    ),
    "workload of a wrong type": (
        'workload = 3\nengines = ["numpy"]',
        "my.toml, line 1: `workload` is 3; expected the name of a workload",
    ),
    "name with a slash": (
        HEAD + 'name = "a/b"',
        'my.toml, line 3: `name` is "a/b"; expected at most 100 letters, digits, - _ or ., the first a letter or digit',
    ),
    "name that leads upwards": (
        HEAD + 'name = ".."',
        'my.toml, line 3: `name` is ".."; expected at most 100 letters, digits, - _ or ., the first a letter or digit',
    ),
    "zero repetitions": (
        HEAD + "repeat = 0",
        "my.toml, line 3: `repeat` is 0; expected a whole number from 1 to 1,000",
    ),
    "target in percent": (
        HEAD + "targets = [0.95, 97]",
        "my.toml, line 3: `targets` is 97; expected a number above 0, at most 1",
    ),
    "unknown parameter": (
        HEAD + "[params]\nlerning_rate = 0.1",
        "my.toml, line 4: `lerning_rate` is not a key of [params]; did you mean `learning_rate`?",
    ),
    "parameter at the top": (
        "epochs = 3\n" + HEAD,
        "my.toml, line 1: `epochs` is not a study key; it belongs in [params]",
    ),
    "cluster key among the parameters": (
        HEAD + "[params]\ncores = 2",
        "my.toml, line 4: `cores` is not a key of [params]; it belongs in [cluster]",
    ),
    "workers in the cluster": (
        HEAD + "[cluster]\nworkers = 2",
        "my.toml, line 4: `workers` is not a key of [cluster]; it belongs in [params]",
    ),
    "knob of an absent engine": (
        HEAD + "[params]\nmax_iter = 3",
        "my.toml, line 4: `max_iter` is not a key of [params]; "
        "it is a knob of `spark-mllib`, which is not among the study's engines",
    ),
    "knob of another engine": (
        HEAD + "[engine.numpy]\ntau = 3",
        "my.toml, line 4: `tau` is not a key of [engine.numpy]; it belongs in [engine.torch]",
    ),
    "table of an unknown engine": (
        HEAD + "[engine.nunpy]\nepochs = 3",
        "my.toml, line 3: `nunpy` is not an engine; did you mean `numpy`?",
    ),
    "negative rate": (
        HEAD + "[params]\nlearning_rate = -1",
        "my.toml, line 4: `learning_rate` is -1; expected a number above 0, at most 1,000",
    ),
    "rate that is no number": (
        HEAD + "[params]\nlearning_rate = nan",
        "my.toml, line 4: `learning_rate` is nan; expected a number above 0, at most 1,000",
    ),
    "infinite cores": (
        HEAD + "[cluster]\ncores = inf",
        "my.toml, line 4: `cores` is inf; expected a number above 0, at most 1,024",
    ),
    "true is not a number": (
        HEAD + "[params]\nepochs = true",
        "my.toml, line 4: `epochs` is true; expected a whole number from 1 to 1,000,000",
    ),
    "half an epoch": (
        HEAD + "[params]\nepochs = 0.5",
        "my.toml, line 4: `epochs` is 0.5; expected a whole number from 1 to 1,000,000",
    ),
    "whole number with a point": (
        HEAD + "[params]\nepochs = 5.0",
        "my.toml, line 4: `epochs` is 5.0; expected a whole number from 1 to 1,000,000",
    ),
    "huge number": (
        HEAD + "[params]\nepochs = 100000000000000000000",
        "my.toml, line 4: `epochs` is a number of more than 15 digits; expected a whole number from 1 to 1,000,000",
    ),
    "number of a million digits": (
        HEAD + "[params]\nepochs = " + "9" * 10_000,
        "my.toml: a number has too many digits",
    ),
    "hexadecimal number of many digits": (
        HEAD + "[params]\nepochs = 0x" + "f" * 10_000,
        "my.toml, line 4: `epochs` is a number of more than 15 digits; expected a whole number from 1 to 1,000,000",
    ),
    "a date": (
        HEAD + "[params]\nepochs = 2024-01-01",
        "my.toml, line 4: `epochs` is a date or time; expected a whole number from 1 to 1,000,000",
    ),
    "several values outside the grid": (
        HEAD + "[params]\nepochs = [1, 2]",
        "my.toml, line 4: `epochs` is a list; expected a whole number from 1 to 1,000,000; "
        "to try several values write them in [grid]",
    ),
    "unknown optimizer": (
        HEAD + '[params]\noptimizer = "adm"',
        'my.toml, line 4: `optimizer` is "adm"; expected one of sgd, momentum, adam, l-bfgs; did you mean `adam`?',
    ),
    "no hidden layer": (
        HEAD + "[params]\nhidden = []",
        "my.toml, line 4: `hidden` is an empty list; "
        "expected a list, each value a whole number from 1 to 1,000,000; at most 100 values",
    ),
    "unknown key of stop": (
        HEAD + "[params]\nstop = { patients = 3 }",
        "my.toml, line 4: `patients` is not a key of `stop`; expected a table with `tol` and `patience`",
    ),
    "mode that no engine has": (
        HEAD + '[params]\nmode = "asink"',
        'my.toml, line 4: `mode` is "asink"; expected one of single, sync, async, local; did you mean `async`?',
    ),
    "mode that this engine has not": (
        HEAD + '[engine.numpy]\nmode = "sync"',
        'my.toml, line 4: `mode` is "sync"; expected single',
    ),
    "choice of a knob": (
        HEAD + '[engine.torch]\nfeed = "disc"',
        'my.toml, line 4: `feed` is "disc"; expected one of memory, disk; did you mean `disk`?',
    ),
    "knob below its minimum": (
        HEAD + "[params]\ntau = 0",
        "my.toml, line 4: `tau` is 0; expected a whole number of at least 1",
    ),
    "kind of cluster": (
        HEAD + '[cluster]\nkind = "cloud"',
        'my.toml, line 4: `kind` is "cloud"; expected one of processes, lab, hosts, attach',
    ),
    "nothing to attach to": (
        'workload = "digits-mlp"\nengines = ["spark-mllib"]\n[cluster]\nkind = "attach"',
        'my.toml, line 4: `spark-mllib` has nothing to attach to; name the cluster, as in master = "spark://host:7077"',
    ),
    "a master without attaching": (
        'workload = "digits-mlp"\nengines = ["spark-mllib"]\n[cluster]\nmaster = "yarn"',
        "my.toml, line 4: `master` names a cluster that exists, but `spark-mllib` would start one; "
        'write kind = "attach"',
    ),
    "no hosts": (
        HEAD + '[cluster]\nkind = "hosts"\n[params]\nmode = "sync"',
        'my.toml, line 4: `torch` has no hosts to run on; name them, as in hosts = ["alpha", "user@10.0.0.2:2222"]',
    ),
    "hosts of another kind": (
        HEAD + '[cluster]\nhosts = ["alpha"]',
        'my.toml, line 4: `hosts` says something about hosts only; write kind = "hosts"',
    ),
    "a host that is none": (
        HOSTS + 'hosts = ["alpha", "beta:ssh"]',
        'my.toml, line 5: `beta:ssh` is not a host; expected one as in "alpha" or "user@10.0.0.2:2222"',
    ),
    "an option for ssh": (
        HOSTS + 'hosts = ["-oProxyCommand=id", "beta"]',
        'my.toml, line 5: `-oProxyCommand=id` is not a host; expected one as in "alpha" or "user@10.0.0.2:2222"',
    ),
    "a host twice": (
        HOSTS + 'hosts = ["alpha", "alpha"]',
        "my.toml, line 5: `alpha` is among the hosts twice; a host has one worker",
    ),
    "more workers than hosts": (
        HOSTS + 'hosts = ["alpha", "beta"]\n[grid]\nworkers = [2, 3]',
        "my.toml, line 7: 3 workers need as many hosts, and there are 2; name more hosts, or leave `workers` out",
    ),
    "fewer workers than hosts": (
        HOSTS + 'hosts = ["alpha", "beta", "gamma"]\n[params]\nworkers = 2',
        "my.toml, line 7: `workers` is 2, and there are 3 hosts; leave it out, or sweep it in [grid]",
    ),
    "a property that is a list": (
        'workload = "digits-mlp"\nengines = ["spark-mllib"]\n[cluster.spark]\nspark.jars = []',
        "my.toml, line 3: `spark.jars` is an empty list; expected a text, a number, true or false",
    ),
    "no time at all": (
        HEAD + "[limits]\ntimeout_s = 0",
        "my.toml, line 4: `timeout_s` is 0; expected a number above 0, at most 100,000,000",
    ),
    "table that is a number": (HEAD + "params = 3", "my.toml, line 3: `params` is 3; expected a table, as in [params]"),
    "empty grid": (
        HEAD + "[grid]\nepochs = []",
        "my.toml, line 4: `epochs` is an empty list; expected at least one value",
    ),
    "grid without a list": (
        HEAD + "[grid]\nepochs = 3",
        "my.toml, line 4: `epochs` is 3; expected a list of values, as in [1, 2]",
    ),
    "sizes of one layer in the grid": (
        HEAD + "[grid]\nhidden = [32, 64]",
        "my.toml, line 4: `hidden` is 32; expected a list, each value a whole number from 1 to 1,000,000; "
        "at most 100 values; list the lists, as in [[32], [64]]",
    ),
    "grid of lists without a list": (
        HEAD + "[grid]\nhidden = 32",
        "my.toml, line 4: `hidden` is 32; expected a list of values, as in [[32], [64]]",
    ),
    "bad size of a layer in the grid": (
        HEAD + "[grid]\nhidden = [[32], [0]]",
        "my.toml, line 4: `hidden` is 0; expected a whole number from 1 to 1,000,000",
    ),
    "one bad value of a grid": (
        HEAD + "[grid]\nepochs = [\n  1,\n  -2,\n]",
        "my.toml, line 6: `epochs` is -2; expected a whole number from 1 to 1,000,000",
    ),
    "grid over what cannot vary": (
        HEAD + "[grid]\nrepeat = [1, 2]",
        "my.toml, line 4: `repeat` is not a key that [grid] can vary; it belongs at the top of the file",
    ),
    "unknown workload in the grid": (
        'engines = ["numpy"]\n[grid]\nworkload = ["digits-mlp", "digit-mlp"]',
        'my.toml, line 3: `workload` is "digit-mlp"; '
        "expected one of mnist-mlp, mnist-cnn, clicks-logreg, mnist-large-mlp, emnist-mlp, digits-mlp; "
        "did you mean `digits-mlp`?",
    ),
    "key in grid and case": (
        HEAD + "[grid]\nepochs = [1, 2]\n[[case]]\nworkers = 1\n[[case]]\nepochs = 2",
        "my.toml, line 8: `epochs` varies both in [grid] and in [[case]]; keep one",
    ),
    "case without brackets": (
        HEAD + "[case]\nepochs = 2",
        "my.toml, line 3: `case` is a table; expected tables, each headed [[case]]",
    ),
    "bad value in the second case": (
        HEAD + "[[case]]\nworkers = 1\n[[case]]\nworkers = 0",
        "my.toml, line 6: `workers` is 0; expected a whole number from 1 to 10,000",
    ),
    "batch too small to share": (
        HEAD + "[params]\nbatch_size = 2\n[grid]\nworkers = [1, 4]",
        "my.toml, line 6: a batch_size of 2 cannot be shared by the 4 workers of `torch`; "
        "expected at least one row per worker",
    ),
    "a million trials": (
        HEAD + f"[grid]\nseed = {list(range(1000))}\nepochs = {list(range(1, 501))}",
        "my.toml, line 4: the study has 1,000,000 trials, and at most 10,000 are allowed; "
        "the largest factors are `seed` (1,000), `epochs` (500)",
    ),
    "not TOML": (
        HEAD + "[params\nepochs = 2",
        "my.toml, line 3: this is not TOML: expected ']' at the end of a table declaration (column 8)",
    ),
    "not TOML at the end": (HEAD + "repeat =", "my.toml, line 3: this is not TOML: invalid value"),
    "a key twice": (HEAD + "repeat = 1\nrepeat = 2", "my.toml, line 4: this key is there twice; keep one"),
    "nested without end": ("a = " + "[" * 5000, "my.toml: the lists or tables are nested too deeply to be a study"),
    "a key of two lines": (
        HEAD + '"a\\nb" = 1',
        "my.toml, line 3: `a\\nb` is not a study key; "
        "the keys are name, workload, engines, targets, repeat, params, fault, grid, case, engine, cluster, machine, "
        "limits",
    ),
    "only a comment": (
        "# nothing yet\n",
        "my.toml: the file is empty; a study needs at least `workload` and `engines`",
    ),
}


@pytest.mark.parametrize(("text", "error"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_a_one_line_error(text: str, error: str, tmp_path: Path) -> None:
    assert error_of(tmp_path, text) == error


@pytest.mark.parametrize(
    ("table", "other_names", "ours"),
    [
        ("params", "lr LR rate", "learning_rate"),
        ("params", "batch batchsize", "batch_size"),
        ("params", "optimiser", "optimizer"),
        ("params", "layers hidden_layers units", "hidden"),
        ("grid", "epoch iterations", "epochs"),
        ("engine.torch", "weight_decay alpha", "l2"),
        ("cluster", "threads cpus", "cores"),
        ("cluster", "memory", "memory_gb"),
        ("limits", "timeout", "timeout_s"),
        ("", "repeats repetitions n", "repeat"),
    ],
)
def test_names_of_keys_in_other_programs_get_a_suggestion(
    table: str, other_names: str, ours: str, tmp_path: Path
) -> None:
    for name in other_names.split():
        text = HEAD + (f"[{table}]\n" if table else "") + f"{name} = 1"
        assert error_of(tmp_path, text).endswith(f"; did you mean `{ours}`?"), name


def test_a_knob_of_an_installed_engine_gets_no_suggestion_of_another_key(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(HEAD + "[params]\nmax_iter = 3")
    without = Installed({name: ENGINES[name] for name in ("numpy", "torch")}, FAMILIES)
    with pytest.raises(TrainoffError, match="did you mean `epochs`"):
        read(tmp_path / "my.toml", without)
    with pytest.raises(TrainoffError, match="it is a knob of `spark-mllib`"):
        read(tmp_path / "my.toml", INSTALLED)
    with pytest.raises(TrainoffError, match=r"--set max_iter=3: .* it is a knob of `spark-mllib`"):
        study(tmp_path, HEAD, overrides=["max_iter=3"])


@pytest.mark.parametrize(
    ("other_name", "ours"), [("pytorch", "torch"), ("tf", "tensorflow"), ("scikit-learn", "sklearn")]
)
def test_another_name_of_an_engine_gets_a_suggestion_if_it_is_installed(
    other_name: str, ours: str, tmp_path: Path
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(f'workload = "digits-mlp"\nengines = ["{other_name}"]')
    numpy = {"numpy": ENGINES["numpy"]}
    with pytest.raises(TrainoffError, match=f"`{other_name}` is not an engine; did you mean `{ours}`"):
        read(path, Installed({**numpy, ours: EngineFacts(ours)}, FAMILIES))
    with pytest.raises(TrainoffError, match=f"`{other_name}` is not an engine; the engines are numpy$"):
        read(path, Installed(numpy, FAMILIES))


def test_a_table_of_an_engine_that_the_study_does_not_run_is_allowed(tmp_path: Path) -> None:
    trials = study(tmp_path, HEAD + "[engine.spark-mllib]\nmax_iter = 3").trials()
    assert {trial.engine for trial in trials} == {"numpy", "torch"}


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TrainoffError, match=r"no\.toml: there is no such file; name a study file"):
        read(tmp_path / "no.toml", INSTALLED)


def test_a_folder_is_not_a_study(tmp_path: Path) -> None:
    with pytest.raises(TrainoffError, match="this is a folder; name a study file in it"):
        read(tmp_path, INSTALLED)


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(b'name = "a"\n# caf\xe9\n')
    with pytest.raises(TrainoffError, match=r"my\.toml, line 2: the file is not UTF-8 text; save it as UTF-8"):
        read(path, INSTALLED)


def test_a_file_that_is_too_large() -> None:
    with pytest.raises(TrainoffError, match="larger than 256 KiB"):
        read("/dev/zero", INSTALLED)


def test_a_file_name_that_is_not_a_valid_study_name(tmp_path: Path) -> None:
    path = tmp_path / "my study.toml"
    path.write_text(HEAD)
    with pytest.raises(TrainoffError, match=r'`name` is "my study"; .* write one into the file, as in name = "quick"'):
        read(path, INSTALLED)
    assert read(path, INSTALLED, overrides=["name=mine"]).name == "mine"


def test_reading_a_study_imports_no_heavy_library() -> None:
    heavy = {"numpy", "sklearn", "polars", "trainoff.engines"}
    code = f"import sys, trainoff.study; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
