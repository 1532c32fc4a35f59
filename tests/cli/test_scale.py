"""`trainoff scale` as a user types it: on records that are made, not run."""

import json
import os
import re
import subprocess
import sys

import pytest

from helpers.records import record, store
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


def many(*counts, **more):
    return [ran(engine, nodes, **more) for engine in LAWS for nodes in counts]


def said(capsys, *words):
    code = main(["scale", *map(str, words)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def complaint(capsys, *words):
    assert main(["scale", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("trainoff: ").strip()


def test_a_table_and_sentences_for_every_engine(workdir, capsys):
    store(workdir / "out", *many(1, 2, 4, 8), ran("numpy", 1, mode="single"))
    out = said(capsys, "out", "--at", "17")
    assert max(map(len, out.splitlines())) <= 80
    lines = out.splitlines()
    start = lines.index("torch-ddp: training time")
    assert "s constant + " in lines[start + 1]
    assert "s divided among the nodes" in lines[start + 1]
    rows = [line.split() for line in lines[start + 3 : start + 8]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "17"]
    assert rows[-1][-1] == "extrapolated"
    assert "about" in rows[-1]
    words = " ".join(out.split())
    assert "Checked by leaving out each number of nodes in turn" in words
    assert "One number of nodes only, so no curve: numpy." in words


def test_programs_read_the_same(workdir, capsys):
    store(workdir / "out", *many(1, 2, 4, 8))
    found = json.loads(said(capsys, "out", "--at", "17", "3", "--json"))
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


def test_runs_are_held_out_and_grade_the_model(workdir, capsys):
    store(workdir / "out", *many(1, 2, 4, 8, 17))
    found = json.loads(said(capsys, "out", "--hold-out", "17", "--at", "17", "--json"))
    for curve in found["curves"]:
        assert curve["fitted_on"] == [1, 2, 4, 8]
        (held,) = curve["held_out_errors"]
        assert (held["nodes"], held["error"]) == (17, curve["predictions"][-1]["error"])
        assert curve["predictions"][-1]["held_out"]
    assert abs(found["curves"][1]["held_out_errors"][0]["error"]) < 0.1
    assert re.search(r"held out it was off by \S+ at 17\.", " ".join(said(capsys, "out", "--hold-out", "17").split()))


def test_other_figures(workdir, capsys):
    reached = [ran("torch-ddp", n, time_to_target={"0.9": 1 / n}, targets=[0.9]) for n in (1, 2, 4)]
    never = ran("torch-ddp", 8, time_to_target={"0.9": None}, targets=[0.9])
    store(workdir / "out", *reached, never)
    out = " ".join(said(capsys, "out", "--target", "0.9").split())
    assert "torch-ddp: time to 90%" in out
    assert "1 run that did not come to this figure is left out." in out
    assert "seconds per 1,000 samples" in said(capsys, "out", "--figure", "per_1000_samples")
    assert complaint(capsys, "out", "--target", "0.5") == TIMED.format("0.9")
    assert "give one of them" in complaint(capsys, "out", "--target", "0.9", "--figure", "cold_s")


def test_rows_and_workloads_have_their_places_in_table_and_command(workdir, capsys):
    def on(nodes, rows, workload):
        took = 1 + rows / 1000 / nodes
        return ran("torch-ddp", nodes, train_s=took, workload=workload, dataset={"train_rows": rows})

    places = [(nodes, rows, name) for nodes in (1, 2, 4) for rows in (6000, 60000) for name in ("one", "two")]
    store(workdir / "out", *(record(f"r{number}", **vars_of(on(*place))) for number, place in enumerate(places)))
    out = said(capsys, "out", "--at", "8", "--minutes", "20")
    assert "torch-ddp on one: training time" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["8", "6,000", "-"] in [line[:3] for line in lines]
    assert "(60,000 rows)" in out
    assert "  torch-ddp: predictions ±" in out
    assert "    8 nodes, 60,000 rows, " in out
    commands = [line.strip() for line in out.splitlines() if line.strip().startswith("trainoff run")]
    assert all("--set workload=" in line and "--set train_rows=" in line for line in commands)
    (first, _) = json.loads(said(capsys, "out", "--json"))["curves"]
    assert first["terms"] == pytest.approx({"constant": 1.0, "work": 60.0})
    assert first["rows"] == 60000


def vars_of(made):
    return {name: value for name, value in vars(made).items() if name != "trial_id"}


def test_what_to_run_next_with_the_command(workdir, capsys):
    folder = store(workdir / "out" / "sizes", *many(1, 2, 4))
    (workdir / "sizes.toml").write_text(STUDY)
    ran_by = "# trainoff run sizes.toml --set nodes=4 --set epochs=1 --engine torch-ddp --repeat 2 --out out\n"
    (folder / "study.toml").write_text(ran_by + STUDY)
    out = said(capsys, folder, "--at", "17", "--minutes", "10")
    commands = [line.strip() for line in out.splitlines() if line.strip().startswith("trainoff run")]
    begin = "trainoff run sizes.toml --set epochs=1 --out out --engine"
    assert commands
    assert all(line.startswith(begin) and "--set nodes=" in line for line in commands)
    assert "Next, within 10 min:" in out
    found = json.loads(said(capsys, folder, "--at", "17", "--minutes", "10", "--json"))["next"]
    assert found["minutes"] == 10
    assert sum(run["seconds"] for run in found["runs"]) <= 600
    assert {run["engine"] for run in found["runs"]} == set(LAWS)
    planned = found["runs"][0]["command"].split()[3:]
    overrides = [planned[place + 1] for place, word in enumerate(planned) if word == "--set"]
    trials = study.read(
        workdir / "sizes.toml", engines.facts(), overrides=overrides, only=[found["runs"][0]["engine"]]
    ).trials()
    assert {trial.workers for trial in trials} == {found["runs"][0]["nodes"]}
    (workdir / "sizes.toml").unlink()
    assert f"trainoff run {folder}/study.toml --set epochs=1" in said(capsys, folder, "--minutes", "10")


@pytest.mark.parametrize("figure", ["per_1000_samples", "cold_s"])
def test_a_run_takes_as_long_whatever_is_asked_of_it(workdir, capsys, figure):
    store(workdir / "out", *(ran("torch-ddp", nodes, cold_s=10 + LAWS["torch-ddp"](nodes)) for nodes in (1, 2, 4)))
    found = json.loads(said(capsys, "out", "--at", "17", "--minutes", "10", "--figure", figure, "--json"))["next"]
    assert found["runs"]
    for run in found["runs"]:
        assert run["seconds"] / run["runs"] == pytest.approx(10 + LAWS["torch-ddp"](run["nodes"]), rel=0.1)


def test_rows_that_were_set_stay_set(workdir, capsys):
    folder = store(workdir / "out" / "sizes", *many(1, 2, 4))
    (folder / "study.toml").write_text(f"# trainoff run sizes.toml --set nodes=4 --set train_rows=1000\n{STUDY}")
    runs = json.loads(said(capsys, folder, "--minutes", "10", "--json"))["next"]["runs"]
    assert all("--set train_rows=1000 --engine" in run["command"] for run in runs)


def test_the_command_runs_the_curve_and_no_other(workdir, capsys):
    folder = store(
        workdir / "out" / "sizes",
        *(ran("torch-ddp", nodes, params={"epochs": epochs}) for nodes in (1, 2) for epochs in (1, 2)),
    )
    (folder / "study.toml").write_text(f"# trainoff reproduce sizes --out elsewhere\n{STUDY}")
    runs = json.loads(said(capsys, folder, "--minutes", "10", "--json"))["next"]["runs"]
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


def test_too_little_time_for_anything(workdir, capsys):
    store(workdir / "out", *many(1, 2, 4))
    out = said(capsys, "out", "--minutes", "0.05")
    assert "0.05 min are too little for any run that would help: the shortest takes about" in out
    found = json.loads(said(capsys, "out", "--minutes", "0.05", "--json"))["next"]
    assert found["runs"] == []


def test_one_number_of_nodes_and_some_minutes_is_a_beginning(workdir, capsys):
    store(workdir / "out", *many(2))
    out = said(capsys, "out", "--minutes", "10")
    assert "trainoff run STUDY --engine" in out


def test_what_cannot_be_answered_is_one_sentence(workdir, capsys):
    assert "there is no such folder" in complaint(capsys, "nowhere")
    (workdir / "empty").mkdir()
    assert complaint(capsys, "empty") == "empty: no records here yet; `trainoff run STUDY` makes some"
    store(workdir / "one", ran("torch-ddp", 1))
    assert complaint(capsys, "one").startswith("one: one record is a point and not a curve; `trainoff run STUDY")
    store(workdir / "alike", *many(2), *many(2, seed=2))
    assert complaint(capsys, "alike").startswith("alike: all runs have 2 nodes, and a curve needs two numbers of them")
    store(workdir / "apart", ran("torch-ddp", 1), ran("spark-average", 2))
    assert "no engine was run with two numbers of nodes and all else alike" in complaint(capsys, "apart")
    store(workdir / "failed", *many(1, 2, status="crashed", train_s=None))
    assert "no run here has that figure (4 crashed), so there is nothing to fit" in complaint(capsys, "failed")
    store(workdir / "never", *many(1, 2, time_to_target={"0.9": None}, targets=[0.9]))
    assert "(4 never got there)" in complaint(capsys, "never", "--target", "0.9")
    store(workdir / "good", *many(1, 2))
    assert "hold out fewer" in complaint(capsys, "good", "--hold-out", "2")


def test_what_was_published_is_modelled_too(capsys):
    found = json.loads(said(capsys, "published:machines-and-clusters", "--json"))
    small, large = found["curves"]
    assert small["fitted_on"] == large["fitted_on"] == [1, 3, 5, 17]
    assert {nodes: round(error, 2) for nodes, error in large["left_out_errors"].items()} == {
        "1": 1.30, "3": -0.35, "5": 0.18, "17": 0.26,
    }  # fmt: skip
    (alone,) = [one for one in found["remarks"] if one.startswith("One number of nodes only")]
    assert alone.endswith("more.")
    assert alone.count(" with ") == 3, "of many a few are named"


def test_of_published_figures_without_nodes_there_is_no_curve(capsys):
    assert "there is no published study `nonsense`" in complaint(capsys, "published:nonsense")
    assert "nobody wrote down how many nodes these runs had" in complaint(capsys, "published:sync-async")
    told = complaint(capsys, "published:machines-and-clusters", "--minutes", "20")
    assert told.endswith("`trainoff reproduce machines-and-clusters` asks anew")


def test_what_nobody_measured_cannot_be_held_out(workdir, capsys):
    store(workdir / "out", *many(1, 2, 4))
    assert complaint(capsys, "out", "--hold-out", "3") == "--hold-out 3: no run has 3 nodes; they have 1, 2, 4"


def test_next_to_nothing_has_no_sign(workdir, capsys):
    exact = [ran(engine, nodes, train_s=4 + 40 / nodes) for engine in LAWS for nodes in (1, 2, 4, 8)]
    store(workdir / "out", *exact)
    out = said(capsys, "out", "--at", "17")
    assert "under 1%" in out
    for wrong in ("+0%", "-0%", "about under"):
        assert wrong not in out


@pytest.mark.parametrize("word", ["0", "many", "2.5", "-3", "1e9", "٣", "100001"])
def test_nonsense_is_no_number_of_nodes(workdir, capsys, word):
    store(workdir / "out", *many(1, 2))
    told = complaint(capsys, "out", "--at", word)
    assert "is not a number of nodes; give whole numbers from 1 to 100,000, as in --at 17" in told


@pytest.mark.parametrize("word", ["0", "-1", "nan", "inf"])
def test_nonsense_is_no_time(workdir, capsys, word):
    store(workdir / "out", *many(1, 2))
    assert "is no time to run anything in" in complaint(capsys, "out", f"--minutes={word}")


def test_the_command_line_stays_quick_to_start():
    code = "import sys; from trainoff.cli import main; main(['scale', 'nowhere']); print('scipy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "False", "it is imported only where it is used"
