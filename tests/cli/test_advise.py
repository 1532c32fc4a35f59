"""`trainoff advise` on made-up records, and the calibration of its probabilities."""

import json
import math

import numpy as np
import pytest
from made_up import calibration_error, reliability, score

from helpers.records import record, store
from helpers.running import error_line
from trainoff.analysis.advice.posterior import RunEvidence, compute_standings, fit_posteriors
from trainoff.cli import main
from trainoff.cli.run import next_step

SPREAD = (0.0, 0.02, -0.02, 0.01, -0.01)


def ran(engine, seconds, seed=1, nodes=1, target=0.97, **more):
    """Return a run that reached the target after `seconds` of training; None: it never did."""
    took = None if seconds is None else seconds * (1 + SPREAD[seed % 5])
    base = {
        "study": "race",
        "engine": engine,
        "workers": nodes,
        "mode": "single" if nodes == 1 and "-" not in engine else "sync",
        "seed": seed,
        "repetition": seed,
        "targets": [target],
        "time_to_target": {str(target): took},
        "test_accuracy": 0.98 if took else 0.91,
        "train_s": 2 * (took or 10.0),
        "cold_s": 2 * (took or 10.0) + 5,
        "dataset": {"train_rows": 6000},
        "environment": {"cpus": 2},
    }
    given = {**base, **more}
    name = f"{engine}-{nodes}-{seed}-{given.get('cores', 1)}-{given['dataset']['train_rows']}"
    return record(f"{name}-{given.get('workload', '')}", **given)


def runs(engine, seconds, number=5, **more):
    return [ran(engine, seconds, seed, **more) for seed in range(number)]


@pytest.fixture
def workdir(workdir, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    return workdir


def output_of(capsys, *arguments):
    code = main(["advise", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return " ".join(out.split())


def advice(capsys, *arguments):
    assert main(["advise", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error_of(capsys, *arguments):
    return error_line(capsys, "advise", *arguments)


def test_the_fastest_is_advised_with_its_probability_and_the_runner_up(workdir, capsys):
    store(workdir / "out", *runs("torch", 10.0), *runs("numpy", 15.0), *runs("jax", None, 2))
    out = output_of(capsys, "out", "--target", "0.97")
    assert out.startswith("Use torch on 1 node of 1 core. It should reach 97% after 10.0 s of training (")
    assert "with start and end 15.0 s." in out
    assert "It is the fastest with a probability of 99%" in out
    assert "Runner-up: numpy on 1 node of 1 core takes 1.5 times as long (" in out
    assert "It reached 97% in 5 of 5 runs." in out
    assert "Never reached 97%: jax." in out
    assert "trainoff run" not in out


def test_json_has_the_same_content(workdir, capsys):
    store(workdir / "out", *runs("torch", 10.0), *runs("numpy", 15.0), *runs("jax", None, 2))
    found = advice(capsys, "out")
    assert (found["target"], found["verdict"], found["goal"], found["never"]) == (0.97, "sure", "seconds", ["jax"])
    assert found["choice"]["engine"] == "torch"
    assert found["choice"]["seconds"]["low"] < 10 < found["choice"]["seconds"]["high"]
    assert found["choice"]["seconds"]["middle"] == pytest.approx(10, rel=0.01)
    behind = found["runner_up"]["times_as_much"]
    assert 1.1 < behind["low"] < behind["middle"] < behind["high"] < 2
    assert behind["middle"] == pytest.approx(1.5, rel=0.02)
    assert sum(one["best"] for one in found["ranked"]) == pytest.approx(1)
    assert found["command"] is None
    assert found == advice(capsys, "out"), "the same records give the same advice"


def test_engines_that_are_equally_good_are_advised_with_the_runs_that_would_decide(workdir, capsys):
    folder = store(workdir / "race", *runs("torch", 10.0, 3), *runs("numpy", 10.2, 3), *runs("jax", 30.0, 3))
    (folder / "study.toml").write_text("# trainoff run race.toml --repeat 3\n")
    (workdir / "race.toml").write_text("")
    out = output_of(capsys, "race")
    assert "either will do, since these runs cannot tell them apart" in out
    assert "runs of each would tell torch and numpy apart: trainoff run race.toml --engine torch --engine numpy" in out
    assert advice(capsys, "race")["verdict"] == "either"
    store(workdir / "twins", *runs("torch", 10.0, 3), *runs("numpy", 10.01, 3))
    twins = advice(capsys, "twins")
    assert twins["next"].endswith("runs of each to tell torch and numpy apart, which is hardly worth it.")
    assert twins["command"] is None


def test_two_engines_with_a_wide_spread_are_undecided(workdir, capsys):
    spread = [ran("torch", s, seed) for seed, s in enumerate((5.0, 10.0, 20.0))]
    spread += [ran("numpy", s, seed) for seed, s in enumerate((7.0, 14.0, 30.0))]
    store(workdir / "out", *spread)
    out = output_of(capsys, "out")
    assert out.startswith("Not enough evidence to choose: torch on 1 node of 1 core may be the best")
    assert "trainoff run STUDY --engine torch --engine numpy --repeat" in out


def test_one_run_is_indicative_and_its_interval_is_wide(workdir, capsys):
    store(workdir / "one", *runs("torch", 10.0, 1), *runs("numpy", 30.0, 1))
    store(workdir / "five", *runs("torch", 10.0), *runs("numpy", 30.0))
    one, five = advice(capsys, "one"), advice(capsys, "five")
    assert (one["indicative"], five["indicative"]) == (True, False)
    width = [math.log(found["choice"]["seconds"]["high"] / found["choice"]["seconds"]["low"]) for found in (one, five)]
    assert width[0] > 2 * width[1]
    assert "this is indicative" in output_of(capsys, "one")
    assert "--repeat 5" in one["command"]


def test_advice_from_a_single_record_is_marked_as_indicative(workdir, capsys):
    store(workdir / "out", ran("torch", 10.0))
    out = output_of(capsys, "out")
    assert out.startswith("Use torch on 1 node of 1 core.")
    assert "Only torch was run, so this does not say which engine to use." in out
    assert "an engine; add others to `engines` in the study, and run it again." in out
    assert "trainoff run" not in out, "a command that would run nothing new is not printed"
    (workdir / "out" / "study.toml").write_text('# trainoff run race.toml\nengines = ["torch", "numpy", "jax"]\n')
    assert advice(capsys, "out")["command"].endswith("study.toml --engine numpy --engine jax")
    assert "One run each, so this is indicative: that runs of one setting lie 5% apart is an assumption." in out


def test_only_engines_with_few_runs_are_called_indicative(workdir, capsys):
    store(workdir / "out", *runs("torch", 10.0, 2), *runs("numpy", 30.0, 10))
    assert "2 runs of torch only, so this is indicative." in output_of(capsys, "out")


def test_commands_keep_overrides_and_name_each_study(workdir, capsys):
    sized = {"dataset": {"train_rows": 10_000}, "number": 2}
    for study, engine, took in (("a", "torch-ddp", 10.0), ("b", "dask-average", 10.3)):
        folder = store(workdir / "out" / study, *runs(engine, took, nodes=4, study=study, **sized))
        (folder / "study.toml").write_text(f"# trainoff run {study}.toml --set workers=4 --set train_rows=10000\n")
        (workdir / f"{study}.toml").write_text("")
    first, second = advice(capsys, "out")["command"].split(" && ")
    assert first.startswith("trainoff run a.toml --set workers=4 --set train_rows=10000 --engine torch-ddp --repeat ")
    assert second.startswith("trainoff run b.toml --set workers=4 --set train_rows=10000 --engine dask-average --rep")


def test_engines_that_were_run_on_other_node_counts_count_as_tried(workdir, capsys):
    store(workdir / "out", *runs("numpy", 10.0), *runs("dask-average", 9.0), *runs("dask-average", 5.0, nodes=2))
    assert "was tried" not in output_of(capsys, "out", "--nodes", "2")


def test_runs_without_the_target_do_not_lower_its_probability(workdir, capsys):
    easier = [
        ran("torch-ddp", 3.0, seed, nodes=n, target=0.9, mode="sync", study="easy") for seed in (7, 8) for n in (1, 2)
    ]
    harder = [ran("torch-ddp", 20.0 / n, seed, nodes=n, mode="sync") for seed in range(5) for n in (1, 2)]
    store(workdir / "out", *easier, *harder)
    predicted = advice(capsys, "out", "--target", "0.97", "--nodes", "3")["choice"]
    assert predicted["reach"] > 0.85


def test_failed_runs_cost_their_time(workdir, capsys):
    """10 s in half of the runs and 40 s in the others, which fail, are worse than 15 s in all of them."""
    unreliable = [ran("torch", 10.0 if seed % 2 else None, seed, train_s=40.0) for seed in range(10)]
    store(workdir / "out", *unreliable, *runs("numpy", 15.0))
    found = advice(capsys, "out")
    assert found["choice"]["engine"] == "numpy"
    assert found["runner_up"]["reach"] == pytest.approx(0.5, abs=0.1)


PRICES = """
date = "2026-01-01"
usd_per_core_hour = 0.36
"""


def test_limits_of_time_and_money(workdir, capsys):
    (workdir / "prices.toml").write_text(PRICES)
    store(
        workdir / "out", *runs("torch", 20.0), *runs("torch-ddp", 15.0, nodes=2), *runs("tf-allreduce", 10.0, nodes=4)
    )

    def engine(*options):
        return advice(capsys, "out", "--prices", "prices.toml", *options)["choice"]["engine"]

    assert engine() == "tf-allreduce"
    assert engine("--max-seconds", "18") == "torch-ddp"
    assert engine("--max-seconds", "100") == "torch"
    assert engine("--max-cost", "0.0035") == "torch-ddp"
    assert engine("--max-cost", "0.0025") == "torch"
    assert engine("--max-cost", "0.0035", "--max-seconds", "18") == "torch-ddp"
    found = advice(capsys, "out", "--prices", "prices.toml", "--max-seconds", "18")
    assert found["goal"] == "usd"
    assert found["choice"]["usd"]["middle"] == pytest.approx(15 * 2 * 0.36 / 3600, rel=0.02)
    assert found["choice"]["keeps_limits"] > 0.9
    assert [one["engine"] for one in found["too_much"]] == ["torch"]
    out = output_of(capsys, "out", "--prices", "prices.toml", "--max-seconds", "18")
    assert "The next run keeps --max-seconds 18 with a probability of" in out
    assert "Not sure enough to keep --max-seconds 18: torch." in out
    assert advice(capsys, "out", "--max-seconds", "18")["goal"] == "seconds", "without a price the fastest"


def test_limits_that_no_candidate_keeps_name_the_nearest(workdir, capsys):
    (workdir / "prices.toml").write_text(PRICES)
    store(workdir / "out", *runs("torch", 20.0), *runs("torch-ddp", 15.0, nodes=2))
    why = error_of(capsys, "out", "--max-seconds", "5")
    assert why.startswith("--max-seconds 5: no candidate is likely to keep that; the nearest is torch-ddp (sync, ")
    assert why.endswith(" with 15.0 s")
    both = error_of(capsys, "out", "--max-seconds", "16", "--max-cost", "0.001", "--prices", "prices.toml")
    assert both.startswith("--max-seconds 16 and --max-cost 0.001: no candidate is likely to keep that; the nearest is")
    assert "no candidate has a known price" in error_of(capsys, "out", "--max-cost", "1")
    assert "--prices FILE" in error_of(capsys, "out", "--max-cost", "1")


@pytest.mark.parametrize("option", ["--max-seconds", "--max-cost", "--cores", "--rows"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_invalid_numbers_are_refused(workdir, capsys, option, value):
    store(workdir / "out", ran("torch", 20.0))
    assert "give a number above 0" in error_of(capsys, "out", f"{option}={value}")


def test_types_of_machines(workdir, capsys):
    """Machines by name have their own cores and prices."""
    (workdir / "prices.toml").write_text("""
[machine]
"small" = { cores = 1, memory_gb = 2, usd_per_hour = 0.1 }
"large" = { cores = 4, memory_gb = 16, usd_per_hour = 0.8 }
""")
    small = runs("torch", 20.0, cores=1.0, memory_gb=2.0, cluster="lab", params={"machine": "small"})
    large = runs("torch", 8.0, cores=4.0, memory_gb=16.0, cluster="lab", params={"machine": "large"})
    store(workdir / "out", *small, *large)
    asked = ("out", "--prices", "prices.toml")
    assert advice(capsys, *asked)["choice"]["machine"] == "large"
    assert advice(capsys, *asked, "--max-seconds", "30")["choice"]["machine"] == "small"
    assert "on 1 node small" in output_of(capsys, *asked, "--machine", "small")
    assert advice(capsys, *asked, "--cores", "4")["choice"]["machine"] == "large"
    assert "did you mean `large`?" in error_of(capsys, *asked, "--machine", "larg")
    assert "leave one of them out" not in output_of(capsys, *asked, "--engine", "torch", "--machine", "large")


LAW = {"torch-ddp": lambda nodes: 2 + 20 / nodes, "spark-average": lambda nodes: 8 + 20 / nodes}


def sizes(*counts, rows=6000, number=2, **more):
    facts = {"cluster": "lab", "dataset": {"train_rows": rows}, "mode": "sync", **more}
    return [
        one for engine, law in LAW.items() for nodes in counts
        for one in runs(engine, law(nodes) * rows / 6000, number, nodes=nodes, **facts)
    ]  # fmt: skip


def test_a_node_count_that_was_not_run_is_predicted(workdir, capsys):
    store(workdir / "out", *sizes(1, 2, 4))
    found = advice(capsys, "out", "--engine", "torch-ddp", "--nodes", "3")
    assert found["choice"]["seconds"]["low"] < LAW["torch-ddp"](3) < found["choice"]["seconds"]["high"]
    assert (found["choice"]["predicted"], found["choice"]["extrapolated"]) == (True, False)
    assert found["choice"]["expected_error"] is not None
    assert found["command"] == "trainoff run STUDY --set nodes=3 --engine torch-ddp"
    out = output_of(capsys, "out", "--engine", "torch-ddp", "--nodes", "32")
    assert out.startswith("Asked about: torch-ddp (sync, 32 workers) on 32 nodes of 1 core")
    assert (
        "This was not run: it is predicted from 6 runs that reached the target, and this lies beyond what was run"
        in out
    )
    wide = advice(capsys, "out", "--engine", "torch-ddp", "--nodes", "32")["choice"]["seconds"]
    close = found["choice"]["seconds"]
    assert wide["high"] / wide["low"] > close["high"] / close["low"]
    assert advice(capsys, "out", "--nodes", "8")["choice"]["engine"] == "torch-ddp"


def test_predictions_are_considered_and_marked(workdir, capsys):
    store(workdir / "out", *sizes(1, 2, 4))
    found = advice(capsys, "out")
    marks = {(one["engine"], one["nodes"]): (one["predicted"], one["extrapolated"]) for one in found["ranked"]}
    assert marks["torch-ddp", 4] == (False, False)
    assert marks["torch-ddp", 3] == (True, False)
    assert marks["torch-ddp", 8] == (True, True)
    assert ("torch-ddp", 16) not in marks
    assert found["choice"]["nodes"] == 8


def test_no_more_workers_than_the_machine_has_cores_are_considered(workdir, capsys):
    store(workdir / "out", *sizes(1, 2, cluster="processes"))
    assert {one["nodes"] for one in advice(capsys, "out")["ranked"]} == {1, 2}
    shared = output_of(capsys, "out", "--engine", "torch-ddp", "--nodes", "4")
    assert "That machine has 2 CPUs for 4 cores: they would be shared, which the model does not include." in shared


def test_nothing_is_predicted_beyond_where_runs_began_to_fail(workdir, capsys):
    failed = [ran("torch-ddp", None, seed, nodes=6, cluster="lab", status="crashed") for seed in (0, 1)]
    store(workdir / "out", *sizes(1, 2, 4), *failed)
    assert max(one["nodes"] for one in advice(capsys, "out", "--engine", "torch-ddp")["ranked"]) < 6


def test_nothing_is_predicted_for_fewer_rows_than_were_too_few(workdir, capsys):
    took = {1000: None, 5000: 3.0, 10000: 5.0}
    every = [
        run for rows, seconds in took.items()
        for run in runs("torch", seconds, 2, dataset={"train_rows": rows}, params={"train_rows": rows})
    ]  # fmt: skip
    store(workdir / "out", *every)
    assert advice(capsys, "out", "--rows", "2000")["choice"]["extrapolated"]
    why = error_of(capsys, "out", "--rows", "500")
    assert why.startswith("out: not enough evidence: with 1,000 rows no run reached 97%")


def test_a_number_of_rows_that_was_not_run_is_predicted(workdir, capsys):
    rows = (5000, 10000, 20000)
    many = [
        run for r in rows for run in runs("torch", 1 + r / 1000, 2, dataset={"train_rows": r}, params={"train_rows": r})
    ]
    store(workdir / "out", *many)
    found = advice(capsys, "out", "--engine", "torch", "--rows", "15000")
    assert found["choice"]["seconds"]["middle"] == pytest.approx(16, rel=0.05)
    assert not found["choice"]["extrapolated"]
    assert found["command"] == "trainoff run STUDY --set train_rows=15000 --engine torch"
    assert advice(capsys, "out", "--rows", "40000")["choice"]["extrapolated"]
    assert "--rows R chooses among those with R rows." in output_of(capsys, "out")


def test_more_rows_lengthen_a_training_but_not_the_time_to_the_target(workdir, capsys):
    """Every engine reaches the target after about 20,000 samples, whatever the rows."""

    def reached(engine, nodes, rows, sample_s):
        samples, seen = 18000 + 0.05 * rows, 4 * rows
        facts = {
            "train_s": 1 + sample_s * seen / nodes,
            "dataset": {"train_rows": rows},
            "cluster": "lab",
            "mode": "sync",
        }
        return runs(engine, facts["train_s"] * samples / seen, 2, nodes=nodes, params={"train_rows": rows}, **facts)

    sample_times = {"torch-ddp": 1e-3, "spark-average": 1.3e-3}
    every = [
        run for engine, sample_s in sample_times.items() for nodes in (1, 2) for rows in (10000, 20000, 80000)
        for run in reached(engine, nodes, rows, sample_s)
    ]  # fmt: skip
    store(workdir / "out", *every)
    found = advice(capsys, "out", "--nodes", "2", "--rows", "40000")
    assert [one["engine"] for one in found["ranked"]] == ["torch-ddp", "spark-average"]
    assert found["choice"]["predicted"]
    assert not found["choice"]["extrapolated"]
    true = (1 + 1e-3 * 160000 / 2) * 20000 / 160000
    assert found["choice"]["seconds"]["middle"] == pytest.approx(true, rel=0.1)
    assert found["choice"]["seconds"]["low"] < true < found["choice"]["seconds"]["high"]
    assert found["choice"]["best"] > 0.9, "the uncertainty of the rows is the same for both"


def test_runs_of_several_machines_are_pointed_out(workdir, capsys):
    hosts = [{"cpus": 2, "host": name} for name in ("one", "two")]
    store(workdir / "out", *runs("torch", 10.0, environment=hosts[0]), *runs("numpy", 15.0, environment=hosts[1]))
    assert "The runs are from 2 machines, whose times are hardly comparable." in output_of(capsys, "out")


def test_a_damaged_record_is_named_and_the_advice_uses_the_rest(workdir, capsys):
    folder = store(workdir / "out", *runs("torch", 10.0), *runs("numpy", 15.0))
    (next(folder.glob("torch*")) / "record.json").write_text("{")
    assert main(["advise", "out"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("Use torch")
    assert "record.json cannot be read" in err


def test_runs_with_a_fault_are_no_candidates(workdir, capsys):
    faulted = runs("jax", 5.0, params={"epochs": 2, "fault": {"action": "slow"}})
    store(workdir / "out", *runs("torch", 10.0), *runs("numpy", 15.0), *faulted)
    assert [one["engine"] for one in advice(capsys, "out")["ranked"]] == ["torch", "numpy"]


def test_with_cold_the_start_counts(workdir, capsys):
    slow = runs("spark-average", 8.0, nodes=2, cold_s=100.0)
    store(workdir / "out", *slow, *runs("torch", 10.0))
    warm, cold = advice(capsys, "out"), advice(capsys, "out", "--cold")
    assert (warm["choice"]["engine"], warm["other_clock"]) == ("spark-average", "torch")
    assert (cold["choice"]["engine"], cold["clock"]) == ("torch", "cold")
    assert cold["choice"]["seconds"]["middle"] == pytest.approx(15, rel=0.02)
    assert "By the time from cold (--cold) the choice would be torch." in output_of(capsys, "out")


def test_a_question_without_an_answer_is_a_one_line_error(workdir, capsys):
    (workdir / "empty").mkdir()
    assert error_of(capsys, "empty") == "empty: no records here yet; `trainoff run STUDY` makes some"
    assert "there is no such folder" in error_of(capsys, "nowhere")
    store(
        workdir / "never", *runs("torch", None, 2, params={"epochs": 3}), *runs("numpy", None, 2, params={"epochs": 3})
    )
    assert error_of(capsys, "never", "--target", "0.97") == (
        "never: not enough evidence: no run reached 97%; numpy came closest with accuracy 0.9100; "
        "run this: trainoff run STUDY --set epochs=6"
    )
    store(workdir / "failed", ran("torch", None, status="crashed"))
    assert error_of(capsys, "failed").endswith("run this: trainoff run STUDY --retry failed")
    store(workdir / "out", *runs("torch", 10.0), *runs("torch-ddp", 12.0, nodes=2))
    target = error_of(capsys, "out", "--target", "0.99")
    assert target.startswith("--target 0.99 was not timed; these were: 0.97")
    assert "did you mean `torch`?" in error_of(capsys, "out", "--engine", "troch")
    assert "no run here names its machine; leave it out" in error_of(capsys, "out", "--machine", "m4.xlarge")
    assert "runs were made with 1 per node" in error_of(capsys, "out", "--cores", "4")
    assert "give one of them" in error_of(capsys, "out", "--cores", "4", "--machine", "m4.xlarge")
    alone = error_of(capsys, "out", "--engine", "torch", "--nodes", "2")
    assert alone.endswith("cannot use more; `trainoff engines` lists those that can")
    assert "there are runs of torch, torch-ddp" in error_of(capsys, "out", "--engine", "nosuch")
    assert "there are runs of digits-mlp" in error_of(capsys, "out", "--workload", "nosuch")
    only = error_of(capsys, "out", "--engine", "torch-ddp", "--nodes", "4")
    assert "nothing was run with two numbers of nodes and all else alike (only 2 nodes)" in only
    assert only.endswith("run this: trainoff run STUDY --set workers=4 --engine torch-ddp")
    assert "all runs had 6,000 rows" in error_of(capsys, "out", "--rows", "100")
    assert "give a whole number" in error_of(capsys, "out", "--nodes", "0")
    assert "no target was timed here" in error_of(capsys, "published:executors")


def test_a_target_of_an_error(workdir, capsys):
    low = {"metric": "error", "test_metrics": {"error": 0.2}, "workload": "clicks-logreg"}
    store(workdir / "out", *runs("torch", 10.0, target=0.25, **low), *runs("numpy", 12.0, target=0.25, **low))
    assert "It should reach 25% error after" in output_of(capsys, "out", "--target", "0.25")
    assert "--target 0.1 was not timed" in error_of(capsys, "out", "--target", "0.1")


def test_several_workloads_need_a_choice(workdir, capsys):
    store(workdir / "out", *runs("torch", 10.0, workload="one"), *runs("torch", 20.0, workload="two"))
    assert error_of(capsys, "out") == "there are runs of one and two; choose one with --workload one"
    assert advice(capsys, "out", "--workload", "two")["choice"]["seconds"]["middle"] == pytest.approx(20, rel=0.02)
    assert "did you mean `two`?" in error_of(capsys, "out", "--workload", "tow")


@pytest.fixture(scope="module")
def made_up_studies():
    return score(400, seed=7)


@pytest.mark.parametrize(("figure", "most"), [("best", 0.03), ("near_best", 0.06), ("kept", 0.04)])
def test_probabilities_are_calibrated(made_up_studies, figure, most):
    pairs = getattr(made_up_studies, figure)
    assert calibration_error(pairs) < most
    for one in reliability(pairs):
        assert one.number < 100 or one.came_true == pytest.approx(one.claimed, abs=0.12)


def test_intervals_and_regret_are_calibrated(made_up_studies):
    assert 0.94 < made_up_studies.coverage < 0.985
    claimed, true = np.mean(made_up_studies.chosen, axis=0)
    assert true == pytest.approx(claimed, abs=0.06)
    assert np.mean([worse for _, worse in made_up_studies.regret]) < 0.08


def test_overconfidence_is_noticed():
    """Claims of 90 % that come true in 60 % of cases are off by 30 %."""
    pairs = [(0.9, came) for came in [True] * 60 + [False] * 40]
    assert calibration_error(pairs) == pytest.approx(0.3)
    (only,) = reliability(pairs)
    assert (only.number, only.came_true) == (100, 0.6)


def test_of_many_equal_candidates_none_is_likely_the_best_and_all_are_good():
    posteriors = fit_posteriors(
        [RunEvidence((10.0, 10.2, 9.8))] * 10 + [RunEvidence((20.0, 20.1, 19.9))], np.random.default_rng(1)
    )
    standings = compute_standings([one.whole for one in posteriors])
    assert all(one.best < 0.25 and one.near_best > 0.7 and one.regret < 0.06 for one in standings[:10])
    assert standings[10].regret == pytest.approx(1.0, abs=0.15)


def test_a_setting_with_few_runs_takes_the_noise_from_the_others():
    calm, noisy = (RunEvidence((10.0, 10.0 * (1 + noise), 10.0 / (1 + noise))) for noise in (0.002, 0.3))
    widths = []
    for others in (calm, noisy):
        posterior = fit_posteriors([RunEvidence((15.0,)), *[others] * 6], np.random.default_rng(1))[0]
        widths.append(np.ptp(np.quantile(np.log(posterior.single), [0.025, 0.975])))
    assert widths[1] > 5 * widths[0]


def test_run_ends_with_the_next_command():
    reached = [ran("torch", 10.0), ran("numpy", 12.0)]
    assert next_step(reached, "results/race") == ["Next: trainoff advise results/race --target 0.97"]
    assert next_step([ran("torch", None)], "results/race") == []
    assert next_step([], "results/race") == []
