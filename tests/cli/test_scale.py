"""`trainoff scale` on made-up records."""

import json
import os
import re
import subprocess
import sys

import pytest

from helpers.records import record, store
from helpers.running import error_line
from trainoff import engines, study
from trainoff.cli import main

LAWS = {"torch-ddp": lambda nodes: 2 + 20 / nodes, "spark-average": lambda nodes: 4 + 40 / nodes + 0.2 * nodes**1.5}


TIMED = "--target 0.5 was not timed; these were: {}; `targets = [0.5]` in a study times this one"


def ran(engine, nodes, seed=1, **more):
    base = {
        "study": "sizes",
        "engine": engine,
        "workers": nodes,
        "mode": "sync",
        "cluster": "lab",
        "seed": seed,
        "params": {"batch_size": 100 * nodes, "epochs": 1},
        "train_s": LAWS[engine](nodes) * (1 + 0.01 * (-1) ** (nodes + seed)) if engine in LAWS else 5.0,
        "cold_s": 30.0,
        "samples_seen": 6000,
    }
    return record(f"{engine}-{nodes}-{seed}-{len(str(more))}", **{**base, **more})


def runs_on(*counts, **more):
    return [ran(engine, nodes, **more) for engine in LAWS for nodes in counts]


def output_of(capsys, *arguments):
    code = main(["scale", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def error_of(capsys, *arguments):
    return error_line(capsys, "scale", *arguments)


def test_a_table_and_sentences_for_every_engine(workdir, capsys):
    store(workdir / "out", *runs_on(1, 2, 4, 8), ran("numpy", 1, mode="single"))
    out = output_of(capsys, "out", "--at", "17")
    assert max(map(len, out.splitlines())) <= 80
    lines = out.splitlines()
    start = lines.index("torch-ddp: training time")
    assert "s constant + " in lines[start + 1]
    assert "s divided among the nodes" in lines[start + 1]
    rows = [line.split() for line in lines[start + 3 : start + 8]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "17"]
    assert rows[-1][-1] == "extrapolated"
    assert "about" in rows[-1]
    prose = " ".join(out.split())
    assert "Checked by leaving out each number of nodes in turn" in prose
    assert "One number of nodes only, so no curve: numpy." in prose


def test_json_has_the_same_content(workdir, capsys):
    store(workdir / "out", *runs_on(1, 2, 4, 8))
    found = json.loads(output_of(capsys, "out", "--at", "17", "3", "--json"))
    assert [curve["engine"] for curve in found["curves"]] == ["spark-average", "torch-ddp"]
    curve = found["curves"][1]
    assert curve["terms"] == pytest.approx({"constant": 2.0, "work": 20.0}, rel=0.1)
    at = {one["nodes"]: one for one in curve["predictions"]}
    assert list(at) == [1, 2, 3, 4, 8, 17]
    assert (at[17]["extrapolated"], at[3]["extrapolated"], at[17]["measured"]) == (True, False, None)
    assert at[17]["low"] < LAWS["torch-ddp"](17) < at[17]["high"]
    assert at[17]["expected_error"] > 0
    assert at[8]["error"] == curve["left_out_errors"]["8"]
    assert at[4]["speed_up"] == pytest.approx(22 / 7, rel=0.05)
    assert "next" not in found


def test_held_out_runs_grade_the_model(workdir, capsys):
    store(workdir / "out", *runs_on(1, 2, 4, 8, 17))
    found = json.loads(output_of(capsys, "out", "--hold-out", "17", "--at", "17", "--json"))
    for curve in found["curves"]:
        assert curve["fitted_on"] == [1, 2, 4, 8]
        (held,) = curve["held_out_errors"]
        assert (held["nodes"], held["error"]) == (17, curve["predictions"][-1]["error"])
        assert curve["predictions"][-1]["held_out"]
    assert abs(found["curves"][1]["held_out_errors"][0]["error"]) < 0.1
    assert re.search(
        r"held out it was off by \S+ at 17\.", " ".join(output_of(capsys, "out", "--hold-out", "17").split())
    )


def test_other_figures(workdir, capsys):
    reached = [ran("torch-ddp", n, time_to_target={"0.9": 1 / n}, targets=[0.9]) for n in (1, 2, 4)]
    never = ran("torch-ddp", 8, time_to_target={"0.9": None}, targets=[0.9])
    store(workdir / "out", *reached, never)
    out = " ".join(output_of(capsys, "out", "--target", "0.9").split())
    assert "torch-ddp: time to 90%" in out
    assert "1 run without this figure is left out." in out
    assert "seconds per 1,000 samples" in output_of(capsys, "out", "--figure", "per_1000_samples")
    assert error_of(capsys, "out", "--target", "0.5") == TIMED.format("0.9")
    assert "give one of them" in error_of(capsys, "out", "--target", "0.9", "--figure", "cold_s")


def test_rows_and_workloads_are_in_the_table_and_in_commands(workdir, capsys):
    def on(nodes, rows, workload):
        took = 1 + rows / 1000 / nodes
        return ran("torch-ddp", nodes, train_s=took, workload=workload, dataset={"train_rows": rows})

    places = [(nodes, rows, name) for nodes in (1, 2, 4) for rows in (6000, 60000) for name in ("one", "two")]
    store(workdir / "out", *(record(f"r{number}", **vars_of(on(*place))) for number, place in enumerate(places)))
    out = output_of(capsys, "out", "--at", "8", "--minutes", "20")
    assert "torch-ddp on one: training time" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["8", "6,000", "-"] in [line[:3] for line in lines]
    assert "(60,000 rows)" in out
    assert "  torch-ddp: predictions ±" in out
    assert "    8 nodes, 60,000 rows, " in out
    commands = [line.strip() for line in out.splitlines() if line.strip().startswith("trainoff run")]
    assert all("--set workload=" in line and "--set train_rows=" in line for line in commands)
    (first, _) = json.loads(output_of(capsys, "out", "--json"))["curves"]
    assert first["terms"] == pytest.approx({"constant": 1.0, "work": 60.0})
    assert first["rows"] == 60000


def vars_of(one):
    return {name: value for name, value in vars(one).items() if name != "trial_id"}


def test_the_next_runs_with_their_commands(workdir, capsys):
    folder = store(workdir / "out" / "sizes", *runs_on(1, 2, 4))
    (workdir / "sizes.toml").write_text(STUDY)
    comment = "# trainoff run sizes.toml --set nodes=4 --set epochs=1 --engine torch-ddp --repeat 2 --out out\n"
    (folder / "study.toml").write_text(comment + STUDY)
    out = output_of(capsys, folder, "--at", "17", "--minutes", "10")
    commands = [line.strip() for line in out.splitlines() if line.strip().startswith("trainoff run")]
    start = "trainoff run sizes.toml --set epochs=1 --out out --engine"
    assert commands
    assert all(line.startswith(start) and "--set nodes=" in line for line in commands)
    assert "Next, within 10 min:" in out
    found = json.loads(output_of(capsys, folder, "--at", "17", "--minutes", "10", "--json"))["next"]
    assert found["minutes"] == 10
    assert sum(run["seconds"] for run in found["runs"]) <= 600
    assert {run["engine"] for run in found["runs"]} == set(LAWS)
    planned = found["runs"][0]["command"].split()[3:]
    overrides = [planned[place + 1] for place, argument in enumerate(planned) if argument == "--set"]
    trials = study.read(
        workdir / "sizes.toml", engines.facts(), overrides=overrides, only=[found["runs"][0]["engine"]]
    ).trials()
    assert {trial.workers for trial in trials} == {found["runs"][0]["nodes"]}
    (workdir / "sizes.toml").unlink()
    assert f"trainoff run {folder}/study.toml --set epochs=1" in output_of(capsys, folder, "--minutes", "10")


@pytest.mark.parametrize("figure", ["per_1000_samples", "cold_s"])
def test_the_time_of_a_run_does_not_depend_on_the_figure(workdir, capsys, figure):
    store(workdir / "out", *(ran("torch-ddp", nodes, cold_s=10 + LAWS["torch-ddp"](nodes)) for nodes in (1, 2, 4)))
    found = json.loads(output_of(capsys, "out", "--at", "17", "--minutes", "10", "--figure", figure, "--json"))["next"]
    assert found["runs"]
    for run in found["runs"]:
        assert run["seconds"] / run["runs"] == pytest.approx(10 + LAWS["torch-ddp"](run["nodes"]), rel=0.1)


def test_commands_keep_the_number_of_rows(workdir, capsys):
    folder = store(workdir / "out" / "sizes", *runs_on(1, 2, 4))
    (folder / "study.toml").write_text(f"# trainoff run sizes.toml --set nodes=4 --set train_rows=1000\n{STUDY}")
    runs = json.loads(output_of(capsys, folder, "--minutes", "10", "--json"))["next"]["runs"]
    assert all("--set train_rows=1000 --engine" in run["command"] for run in runs)


def test_the_command_selects_one_curve(workdir, capsys):
    folder = store(
        workdir / "out" / "sizes",
        *(ran("torch-ddp", nodes, params={"epochs": epochs}) for nodes in (1, 2) for epochs in (1, 2)),
    )
    (folder / "study.toml").write_text(f"# trainoff reproduce sizes --out elsewhere\n{STUDY}")
    runs = json.loads(output_of(capsys, folder, "--minutes", "10", "--json"))["next"]["runs"]
    assert {run["command"].split(" --set nodes=")[0] for run in runs} == {
        f"trainoff run {folder}/study.toml --out {folder.parent} --engine torch-ddp --set epochs={epochs}"
        for epochs in (1, 2)
    }


STUDY = """
name = "sizes"
workload = "digits-mlp"
engines = ["torch-ddp", "spark-average"]
[cluster]
kind = "lab"
cores = 0.1
[grid]
nodes = [1, 2, 4]
"""


def test_too_few_minutes_for_any_run(workdir, capsys):
    store(workdir / "out", *runs_on(1, 2, 4))
    out = output_of(capsys, "out", "--minutes", "0.05")
    assert "0.05 min are too little for any run that would help: the shortest takes about" in out
    found = json.loads(output_of(capsys, "out", "--minutes", "0.05", "--json"))["next"]
    assert found["runs"] == []


def test_runs_are_designed_from_one_node_count(workdir, capsys):
    store(workdir / "out", *runs_on(2))
    out = output_of(capsys, "out", "--minutes", "10")
    assert "trainoff run STUDY --engine" in out


def test_a_question_without_an_answer_is_a_one_line_error(workdir, capsys):
    assert "there is no such folder" in error_of(capsys, "nowhere")
    (workdir / "empty").mkdir()
    assert error_of(capsys, "empty") == "empty: no records here yet; `trainoff run STUDY` makes some"
    store(workdir / "one", ran("torch-ddp", 1))
    assert error_of(capsys, "one").startswith("one: one record is a point and not a curve; `trainoff run STUDY")
    store(workdir / "alike", *runs_on(2), *runs_on(2, seed=2))
    assert error_of(capsys, "alike").startswith("alike: all runs have 2 nodes, and a curve needs two numbers of them")
    store(workdir / "apart", ran("torch-ddp", 1), ran("spark-average", 2))
    assert "no engine was run with two numbers of nodes and all else alike" in error_of(capsys, "apart")
    store(workdir / "failed", *runs_on(1, 2, status="crashed", train_s=None))
    assert "no run here has that figure (4 crashed), so there is nothing to fit" in error_of(capsys, "failed")
    store(workdir / "never", *runs_on(1, 2, time_to_target={"0.9": None}, targets=[0.9]))
    assert "(4 missed the target)" in error_of(capsys, "never", "--target", "0.9")
    store(workdir / "good", *runs_on(1, 2))
    assert "hold out fewer" in error_of(capsys, "good", "--hold-out", "2")


def test_published_records_are_modelled(capsys):
    found = json.loads(output_of(capsys, "published:machines-and-clusters", "--json"))
    small, large = found["curves"]
    assert small["fitted_on"] == large["fitted_on"] == [1, 3, 5, 17]
    assert {nodes: round(error, 2) for nodes, error in large["left_out_errors"].items()} == {
        "1": 1.30, "3": -0.35, "5": 0.18, "17": 0.26,
    }  # fmt: skip
    (alone,) = [one for one in found["remarks"] if one.startswith("One number of nodes only")]
    assert alone.endswith("more.")
    assert alone.count(" with ") == 3, "of many a few are named"


def test_published_figures_without_nodes_give_an_error_of(capsys):
    assert "there is no published study `nonsense`" in error_of(capsys, "published:nonsense")
    assert "these records do not have their numbers of nodes" in error_of(capsys, "published:sync-async")
    message = error_of(capsys, "published:machines-and-clusters", "--minutes", "20")
    assert message.endswith("`trainoff reproduce machines-and-clusters` runs the study again")


def test_only_measured_node_counts_can_be_held_out(workdir, capsys):
    store(workdir / "out", *runs_on(1, 2, 4))
    assert error_of(capsys, "out", "--hold-out", "3") == "--hold-out 3: no run has 3 nodes; they have 1, 2, 4"


def test_a_tiny_error_has_no_sign(workdir, capsys):
    exact = [ran(engine, nodes, train_s=4 + 40 / nodes) for engine in LAWS for nodes in (1, 2, 4, 8)]
    store(workdir / "out", *exact)
    out = output_of(capsys, "out", "--at", "17")
    assert "under 1%" in out
    for wrong in ("+0%", "-0%", "about under"):
        assert wrong not in out


@pytest.mark.parametrize("value", ["0", "many", "2.5", "-3", "1e9", "٣", "100001"])
def test_invalid_node_counts_are_refused(workdir, capsys, value):
    store(workdir / "out", *runs_on(1, 2))
    message = error_of(capsys, "out", "--at", value)
    assert "is not a number of nodes; give whole numbers from 1 to 100,000, as in --at 17" in message


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_invalid_minutes_are_refused(workdir, capsys, value):
    store(workdir / "out", *runs_on(1, 2))
    assert "expected a number of minutes above 0" in error_of(capsys, "out", f"--minutes={value}")


def test_scale_imports_scipy_only_when_needed():
    code = "import sys; from trainoff.cli import main; main(['scale', 'nowhere']); print('scipy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "False", "it is imported only where it is used"
