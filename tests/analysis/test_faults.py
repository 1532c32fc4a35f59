"""Effects of faults: the analysis, the table that `show` prints, and the marks on the report's curves."""

import io

import pytest
from rich.console import Console

from helpers.records import (
    BACK,
    FAULT_RECORDS,
    KILL,
    LOST,
    PAUSE,
    SLOW,
    faulted_record,
    make_record,
    undisturbed_record,
    write_study_folder,
)
from trainoff.analysis import groups
from trainoff.analysis.faults import fault_effects
from trainoff.analysis.format import fault_text
from trainoff.analysis.summary import closing_sentences
from trainoff.cli.show import print_board
from trainoff.report.html import gather
from trainoff.report.html.charts import ChartContext, SeriesReader, charts_of
from trainoff.report.html.charts.runs import fault_rows
from trainoff.report.html.style import engine_styles


def test_a_run_with_a_fault_is_compared_with_one_without():
    found = {(one.group.first.engine, one.action): one for one in fault_effects(groups(FAULT_RECORDS))}
    assert len(found) == 4
    killed = found["torch-ddp", "kill-process"]
    assert (killed.detected_s, killed.recovered_s, killed.samples_redone) == (0.25, 6.0, 2300)
    assert killed.slowdown == pytest.approx(2.0)
    assert killed.quality_lost == pytest.approx(0.01)
    assert killed.name == "torch-ddp (sync, 2 workers)"
    assert found["torch-ddp", "pause"].slowdown == pytest.approx(1.25)
    gone = found["spark-torch", "kill-process"]
    assert (gone.state, gone.slowdown, gone.quality_lost) == ("failed", None, None)
    assert found["dask-average", "slow"].slowdown is None, "there is no run without a fault"


def test_repetitions_are_compared_by_seed():
    records = [undisturbed_record("torch-ddp", seed) for seed in (1, 2, 3)]
    records += [
        faulted_record("torch-ddp", KILL, 1, 0.5, **BACK),
        faulted_record("torch-ddp", KILL, 2, 0.25, **{**BACK, "detected_s": 0.75}),
    ]
    records += [faulted_record("torch-ddp", KILL, 3, status="crashed", **{**LOST, "detected_s": 0.5})]
    (found,) = fault_effects(groups(records))
    assert found.slowdown == pytest.approx(3.0), "of those that ended well"
    assert found.detected_s == 0.5
    assert found.state == "recovered 2, failed 1"


def test_a_smaller_error_is_better():
    common = {"metric": "error", "targets": [], "time_to_target": {}}
    base = make_record("torch-ddp", test_metrics={"error": 0.2}, **common)
    worse = make_record("torch-ddp", params={"epochs": 4, "fault": KILL}, fault={"state": "recovered"},
                 test_metrics={"error": 0.25}, **common)  # fmt: skip
    (found,) = fault_effects(groups([base, worse]))
    assert found.quality_lost == pytest.approx(0.05)


def test_engines_are_ranked_by_runs_without_faults():
    faster = faulted_record("torch-ddp", PAUSE, speed=9.0)
    assert closing_sentences(groups([*FAULT_RECORDS, faster]))[0].startswith(
        "spark-torch (sync, 2 workers) reached 97%"
    )
    only = [faster, faulted_record("torch-ddp", KILL)]
    assert "with fault pause" in closing_sentences(groups(only))[0], (
        "if all runs have a fault, they are ranked as they are"
    )


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (KILL, "kill-process"),
        ({**KILL, "node": 2}, "kill-process node 2"),
        (PAUSE, "pause for 1 s at 2 s"),
        ({**SLOW, "at": 0}, "slow to 25% at 0%"),
        ({"action": "limit", "at": 0.3, "bandwidth_mbit": 10.0, "for_s": 5.0}, "limit to 10 Mbit/s for 5 s"),
    ],
)
def test_the_short_text_of_a_fault(params, text):
    assert fault_text(params) == text


def test_show_prints_a_table_of_faults(tmp_path):
    console = Console(file=io.StringIO(), width=130)
    print_board(FAULT_RECORDS, tmp_path, console)
    lines = console.file.getvalue().splitlines()
    table = lines[lines.index("what the faults did") + 1 :][:5]
    assert [" ".join(line.split()) for line in table] == [
        "engine mode fault noticed back gap redone took accuracy lost state",
        "dask-average sync slow to 25% - - 0.5 s 0 - - unharmed",
        "spark-torch sync kill-process 2.0 s - 2.0 s 0 - - failed",
        "torch-ddp sync kill-process 0.2 s 6.0 s 5.5 s 2,300 2.0× 0.0100 recovered",
        "torch-ddp sync pause for 1 s at 2 s - - 0.5 s 0 1.2× 0.0000 unharmed",
    ]


def test_without_faults_there_is_no_table_of_faults(tmp_path):
    console = Console(file=io.StringIO(), width=130)
    print_board([undisturbed_record("torch-ddp")], tmp_path, console)
    assert "fault" not in console.file.getvalue()
    folder = write_study_folder(tmp_path / "made", [undisturbed_record("torch-ddp")])
    (workload,) = gather(folder).workloads
    assert workload.faults.rows == []
    assert "faults" not in workload.charts[0].data


def test_the_curve_has_marks_for_the_fault_and_for_its_end(tmp_path):
    folder = write_study_folder(tmp_path / "made", FAULT_RECORDS)
    found = groups(FAULT_RECORDS)
    styles = engine_styles(record.engine for record in FAULT_RECORDS)
    chart = charts_of(ChartContext(found, SeriesReader(folder), styles))[0]
    marks = [row for row in chart.data["faults"] if row["engine"] == "torch-ddp" and "pause" in row["fault"]]
    assert [(row["what"], row["train_s"]) for row in marks] == [("fault", 1.0), ("healed", 2.0)]
    curve = [row for row in chart.data["curves"] if row["trial"] == marks[0]["trial"]]
    before = [row for row in curve if row["train_s"] <= 1.0][-1]
    after = next(row for row in curve if row["train_s"] > 1.0)
    assert before["y"] <= marks[0]["y"] <= after["y"]
    assert before["samples"] <= marks[0]["samples"] <= after["samples"]
    assert "A cross is a fault" in chart.about


def test_a_fault_that_was_not_injected_has_no_mark():
    curve = [{"trial": "a.1", "train_s": 1.0, "y": 0.5, "error": 0.5}]
    assert fault_rows(curve, {"a.1": {"at_s": None, "state": "not done"}}) == []
