"""The command line: help, lists, plans, pictures, and one-line errors."""

import json
import re
import shlex
import signal
import subprocess
import sys

import pytest

from helpers.running import command, environment, invoke, only_record, study, trainoff
from trainoff.cli import COMMANDS
from trainoff.cli.common import stop_on_signals
from trainoff.cli.run import redact
from trainoff.cli.show import shade

HEAVY = ("numpy", "pandas", "polars", "sklearn", "scipy", "tensorflow", "torch", "pyspark", "plotly", "rich", "psutil")


def test_help_imports_nothing_heavy():
    loaded = "import sys, trainoff.cli\ntry: trainoff.cli.main(['--help'])\nexcept SystemExit: pass"
    shown = subprocess.run(
        [sys.executable, "-c", f"{loaded}\nprint('LOADED', *sys.modules)"], capture_output=True, text=True, check=True
    )
    assert "doctor" in shown.stdout
    modules = shown.stdout.split("LOADED")[1].split()
    assert [name for name in HEAVY if name in modules] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    shown = invoke(name, "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"usage: trainoff {name} ")


def test_doctor_lists_what_is_missing_and_how_to_install_it():
    facts = json.loads(invoke("doctor", "--json").stdout)
    needy = next(engine for engine in facts["engines"] if engine["name"] == "needy")
    assert needy["status"] == "unavailable"
    assert needy["reason"] == "needs a left-handed screwdriver; touch $NEEDY"
    assert "needs a left-handed screwdriver; touch $NEEDY" in invoke("doctor").stdout
    output = trainoff("doctor", PATH="/nowhere").stdout
    assert "apt-get install openssh-client" in " ".join(output.split())


def test_engines_and_workloads_are_listed_for_programs_and_people():
    engines = {row["name"]: row for row in json.loads(invoke("engines", "--json").stdout)}
    wanted = {"name", "status", "reason", "models", "modes", "distributed"}
    assert wanted <= set(engines["numpy"])
    assert (engines["numpy"]["status"], engines["numpy"]["distributed"]) == ("ready", False)
    assert engines["talker"]["distributed"]
    workloads = {row["name"] for row in json.loads(invoke("workloads", "--json").stdout)}
    assert {"mnist-mlp", "mnist-large-mlp", "emnist-mlp", "digits-mlp"} <= workloads
    assert "784-800-10" in invoke("workloads").stdout


@pytest.mark.cluster
def test_plan_lists_the_trials_and_uses_records(tmp_path):
    path, out = study(tmp_path, "numpy", "sklearn", more="[grid]\nbatch_size = [10, 20]"), tmp_path / "out"
    planned = json.loads(trainoff("plan", path, "--out", out, "--json").stdout)
    assert len(planned["trials"]) == 4
    assert planned["from_records"] == 0
    assert trainoff("run", path, "--out", out, "--engine", "numpy").returncode == 0
    planned = json.loads(trainoff("plan", path, "--out", out, "--json").stdout)
    assert planned["from_records"] == 2
    assert sorted(trial["engine"] for trial in planned["trials"] if trial["to_run"]) == ["sklearn", "sklearn"]
    shown = trainoff("plan", path, "--out", out).stdout
    assert "4 trials, 2 of them already done" in shown
    assert "batch size" in shown


SHARE = "a target is a number above 0 and at most 1"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["advise", "out", "--target", "abc"], "--target abc: expected a number"),
        (["advise", "out", "--nodes", "2.5"], "--nodes 2.5: expected a whole number"),
        (["advise", "out", "--target"], "--target lacks its value; `trainoff advise --help` says what it takes"),
        (["tune", "x.toml"], "--minutes is missing; `trainoff tune --help` says what it is"),
        (["sql"], "DIR, QUESTION is missing; `trainoff sql --help` says what it is"),
        (["tune", "x.toml", "--c", "2"], "--minutes is missing; `trainoff tune --help` says what it is"),
        (["lab", "up", "--m", "2"], "ambiguous option: --m could match --memory-gb, --machine, --memory-scale"),
        (["compare", "out", "--engines", "numpy"], "--engines lacks its value; `trainoff compare --help` says what"),
        (["export", "out", "--to", "cvs"], "`cvs` is not a value of --to; did you mean `csv`?"),
        (
            ["export", "out", "--to", "x"],
            "`x` is not a value of --to; the values are csv, parquet, tensorboard, mlflow",
        ),
        (["lab", "upp"], "`upp` is not a command; did you mean `up`?"),
        (["two\nlines"], "`two\\nlines` is not a command; the commands are doctor, engines, workloads,"),
        (["advise", "out", "--target", "97"], f"--target 97: {SHARE}; did you mean 0.97?"),
        (["compare", "out", "--target", "1.5"], f"--target 1.5: {SHARE}; give one such as 0.97"),
        (["scale", "out", "--target", "nan"], f"--target nan: {SHARE}; give one such as 0.97"),
    ],
)
def test_a_mistake_in_an_option_is_a_one_line_error(tmp_path, arguments, sentence):
    (tmp_path / "out").mkdir()
    done = invoke(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"trainoff: {sentence}")
    assert done.stderr.count("\n") == 1


@pytest.mark.cluster
def test_set_and_repeat_override_the_study(tmp_path):
    path, out = study(tmp_path, "numpy"), tmp_path / "out"
    assert trainoff("run", path, "--out", out, "--set", "epochs=1", "--set", "name=other").returncode == 0
    assert only_record(out)["params"]["epochs"] == 1
    assert (out / "other").is_dir()
    planned = json.loads(trainoff("plan", path, "--repeat", 5, "--json").stdout)
    assert sorted(trial["seed"] for trial in planned["trials"]) == [1, 2, 3, 4, 5]


def test_signals_that_are_ignored_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        stop_on_signals()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGTERM, before[1])


def test_a_closed_pipe_is_no_error():
    shell_command = shlex.join(command("engines", "--json"))
    done = subprocess.run(
        ["bash", "-c", f"{shell_command} | true; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.cluster
def test_show_fits_eighty_columns_and_writes_an_svg(tmp_path):
    path, out = study(tmp_path, "numpy", "crasher"), tmp_path / "out"
    trainoff("run", path, "--out", out)
    shown = trainoff("show", out, "--svg", tmp_path / "board.svg", COLUMNS="80")
    assert shown.returncode == 0
    *board, remark = shown.stdout.splitlines()
    assert max(len(line) for line in board) <= 80
    assert remark.startswith("crasher, seed 1: crashed in train")
    assert remark.endswith("/log.txt)"), "the path is on one line, so it can be copied"
    picture = (tmp_path / "board.svg").read_text()
    assert picture.startswith("<svg")
    assert "url(" not in picture.replace("url(#", ""), "the picture refers to something outside"


@pytest.mark.cluster
def test_a_grid_can_be_read_at_eighty_columns(tmp_path):
    more = "[grid]\nbatch_size = [10, 20]\nlearning_rate = [0.05, 0.125]\nhidden = [[32], [64, 32]]"
    path, out = study(tmp_path, "numpy", more=more), tmp_path / "out"
    planned = trainoff("plan", path, "--out", out, COLUMNS="80").stdout
    assert trainoff("run", path, "--out", out).returncode == 0
    for shown in (planned, trainoff("show", out, COLUMNS="80").stdout):
        assert "…" not in shown
        for batch in (10, 20):
            for rate in (0.05, 0.125):
                for hidden in ("[32]", "[64, 32]"):
                    assert sorted([str(batch), str(rate), hidden]) in _settings(shown)


def _settings(shown):
    return [sorted(found) for found in re.findall(r"(\S+) · (\S+) · (\[[\d, ]+\])", shown)]


@pytest.mark.cluster
@pytest.mark.parametrize(
    "variables",
    [
        {"COLUMNS": "abc"},
        {"COLUMNS": "20"},
        {"PYTHONIOENCODING": "ascii"},
        {"TERM": "dumb"},
        {"JAVA_HOME": "/etc"},
        {"PATH": "/nowhere"},
        {"XDG_CACHE_HOME": "relative"},
    ],
    ids=str,
)
def test_a_run_works_in_unusual_environments(tmp_path, variables):
    done = trainoff("run", study(tmp_path, "numpy"), "--out", tmp_path / "o[/x]", cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_output_may_be_closed(tmp_path):
    shell_command = " ".join(command("doctor"))
    assert subprocess.run(f"{shell_command} >&-", shell=True, env=environment()).returncode == 0


def test_a_misspelt_command_is_a_one_line_error():
    assert invoke("shwo", "results").stderr == "trainoff: `shwo` is not a command; did you mean `show`?\n"
    assert "commands:" in invoke().stdout


MISTAKES = {
    "an unknown engine": ('engines = ["nunpy"]', "line 1: `nunpy` is not an engine; did you mean `numpy`?"),
    "an unknown key": ('enignes = ["numpy"]', "line 1: `enignes` is not a study key; did you mean `engines`?"),
    "an unknown workload": (
        'engines = ["numpy"]\nworkload = "mnist-mpl"',
        "line 2: `mnist-mpl` is not a workload; did you mean `mnist-mlp`?",
    ),
    "a wrong type": ('engines = ["numpy"]\nworkload = "digits-mlp"\n[params]\nepochs = "many"', "line 4: `epochs`"),
    "a negative value": ('engines = ["numpy"]\nworkload = "digits-mlp"\n[params]\nepochs = -1', "line 4: `epochs`"),
    "a zero": ('engines = ["numpy"]\nworkload = "digits-mlp"\n[params]\nbatch_size = 0', "line 4: `batch_size`"),
    "an empty grid": ('engines = ["numpy"]\nworkload = "digits-mlp"\n[grid]\nepochs = []', "line 4: `epochs`"),
    "a grid of a million": (
        'engines = ["numpy"]\nworkload = "digits-mlp"\n[grid]\n'
        + "".join(f"{key} = {list(range(1, 101))}\n" for key in ("epochs", "batch_size", "seed")),
        "1,000,000 trials",
    ),
    "no TOML": ("engines = [", "line"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_study_is_a_one_line_error(tmp_path, mistake):
    text, sentence = MISTAKES[mistake]
    (tmp_path / "my.toml").write_text(text)
    done = invoke("run", "my.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("trainoff: my.toml, ")
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "nowhere.toml"), "nowhere.toml: there is no such file"),
        (("show", "nowhere"), "nowhere: there is no such folder; `trainoff run` makes one under results/"),
        (("show", "."), ".: no records here yet; `trainoff run STUDY` makes some"),
        (("show", __file__), f"{__file__}: this is a file, not a folder of records"),
        (("check", "nunpy"), "`nunpy` is not an engine; did you mean `numpy`?"),
        (("check", "needy"), "needy cannot be checked here: it needs a left-handed screwdriver; touch $NEEDY"),
        (("data", "get", "mnits"), "there is no dataset 'mnits'; did you mean mnist?"),
    ],
)
def test_a_mistake_on_the_command_line_is_a_one_line_error(tmp_path, arguments, sentence):
    done = invoke(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"trainoff: {sentence}")
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_status_to_retry_is_a_one_line_error(tmp_path):
    done = invoke("run", study(tmp_path, "numpy"), "--retry", "faild", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr == "trainoff: --retry faild: that is not a status; did you mean `failed`?\n"


@pytest.mark.cluster
def test_a_picture_that_cannot_be_written_is_an_error(tmp_path):
    trainoff("run", study(tmp_path, "numpy"), "--out", tmp_path / "out")
    done = trainoff("show", tmp_path / "out", "--svg", "/nowhere/board.svg")
    assert done.returncode == 2
    assert done.stderr.startswith("trainoff: /nowhere/board.svg: the picture cannot be written there")


def test_a_network_that_is_too_large_is_refused(tmp_path):
    done = invoke("run", study(tmp_path, "numpy"), "--set", "hidden=[1000000, 1000000]", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "makes a network of 1,000,0" in done.stderr


def test_more_rows_than_the_dataset_has_are_refused(tmp_path):
    done = invoke("run", study(tmp_path, "numpy"), "--set", "train_rows=5000", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "train_rows = 5000, but digits has 1437 training rows" in done.stderr


def test_a_dataset_that_cannot_be_fetched_is_a_one_line_error(tmp_path):
    path = study(tmp_path, "numpy")
    arguments = ("run", path, "--set", "workload=mnist-mlp", "--set", "train_rows=100", "--out", tmp_path / "out")
    done = trainoff(*arguments, TRAINOFF_CACHE=str(tmp_path / "cache"), TRAINOFF_OFFLINE="1")
    assert done.returncode == 2
    assert "mnist" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.cluster
def test_check_runs_the_contract_tests():
    good = trainoff("check", "numpy")
    assert good.returncode == 0, good.stdout
    assert "numpy keeps the contract" in good.stdout
    assert good.stdout.count("exact") == 22
    bad = trainoff("check", "off-by-a-percent")
    assert bad.returncode == 1
    assert "off-by-a-percent breaks the contract" in bad.stdout


def test_the_python_api(tmp_path):
    import trainoff as package

    results = package.run(study(tmp_path, "numpy"), tmp_path / "out")
    assert results.table()["engine"].to_list() == ["numpy"]
    assert results.table()["params.epochs"].to_list() == [2]
    assert "numpy" in repr(package.load(tmp_path / "out"))
    assert "<pre>" in results._repr_html_()


def test_a_plan_does_not_print_secrets(tmp_path):
    properties = '[cluster.spark]\n"spark.authenticate.secret" = "hush"\n"spark.locality.wait" = "1s"'
    path = study(tmp_path, "spark-average", more=properties)
    for result in (invoke("plan", path), invoke("plan", path, "--json")):
        assert result.returncode == 0, result.stderr
        assert "hush" not in result.stdout
        assert "spark.locality.wait" in result.stdout


def test_a_timeline_is_shaded_by_how_busy_a_worker_was():
    assert shade([[0.0, 1.0], [2.0, 2.5]], 4.0, 4) == "█ ▒ "
    assert shade([[0.5, 3.5]], 4.0, 4) == "▒██▒"


def test_the_copy_of_a_study_holds_no_keys():
    text = """# trainoff run a.toml --set storage=s3://me:mine@bucket/rows
storage = "s3://key:hush@bucket/rows"
[cluster.spark]
"spark.authenticate.secret" = "hush hush"
password = 'hush', tokens = 5
"""
    kept = redact(text)
    assert "hush" not in kept
    assert "mine" not in kept
    assert "@bucket/rows" in kept
    assert '"spark.authenticate.secret" = "(left out)"' in kept


def test_a_plan_counts_nodes_by_size(tmp_path):
    lab = '[cluster]\nkind = "lab"\nnodes = 3\ncores = 0.2\nmemory_gb = 1\nfirst = { memory_gb = 2 }'
    planned = invoke("plan", study(tmp_path, "family", more=lab), COLUMNS="200").stdout
    assert "nodes 1 of 0.2 cores, 2 GB + 2 of 0.2 cores, 1 GB" in planned
