"""How settings are named: on boards, in sentences and in tables of costs."""

import io
import itertools
from pathlib import Path

import pytest
from rich.console import Console

from helpers.records import record, store, trained
from trainoff.analysis import groups, unpriced, usual_settings
from trainoff.analysis.bottleneck import start_costs
from trainoff.analysis.correlation import batch_lines
from trainoff.analysis.format import display_value, key_text
from trainoff.analysis.scaling.curves import curves
from trainoff.cli import main
from trainoff.cli.plan import print_plan
from trainoff.cli.show import print_board, wrap_parts
from trainoff.records import Record
from trainoff.report.html.content import board as page_board
from trainoff.report.html.style import engine_styles
from trainoff.study.machines import PriceBook


def on(machine: str, cores: float, engine: str = "numpy", **more: object) -> Record:
    """Return a training on a machine with a price."""
    facts = {"engine": engine, "cores": cores, "memory_gb": 4 * cores, "params": {"machine": machine}, "train_s": cores}
    return trained(f"{engine}-{machine}-{cores}", **{**facts, "usd_per_hour": 0.1 * cores, **more})


def board(*records: Record, width: int = 80) -> str:
    file = io.StringIO()
    print_board(records, Path("nowhere"), Console(file=file, width=width, highlight=False, markup=False))
    return file.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [(15000, "15,000"), (16.0, "16"), (0.4, "0.4"), (None, "all"), (True, "True"), ("m4.xlarge", "m4.xlarge")],
)
def test_display_value(value, text):
    assert display_value(value) == text


def test_a_keys_text_has_its_unit():
    assert [key_text(key) for key in ("memory_gb", "batch_size")] == ["memory GB", "batch size"]


def test_settings_are_named_by_their_machine_instead_of_its_size():
    own = [on("m4.xlarge", 4.0), on("m4.2xlarge", 8.0)]
    assert [group.name for group in groups(own)] == ["numpy with machine m4.xlarge", "numpy with machine m4.2xlarge"]
    assert [curve.name for curve in curves(own)] == [group.name for group in groups(own)]
    parts = groups([*own, on("m4.xlarge", 2.0)])
    assert parts[0].label == {"cores": 4.0, "memory_gb": 16.0, "machine": "m4.xlarge"}, (
        "a part of a machine needs its size, too"
    )


def test_the_report_has_the_size_of_a_machine():
    own = groups([on("m4.xlarge", 4.0), on("m4.2xlarge", 8.0)])
    assert ("a node", "4 cores and 16 GB") in page_board(own, None, {}, engine_styles(["numpy"])).rows[0].details


def test_a_column_without_values_is_left_out():
    (head, *_) = board(on("m4.xlarge", 4.0), on("m4.2xlarge", 8.0)).splitlines()
    assert head.split() == ["engine", "machine", "mode", "W", "to", "target", "accuracy", "train", "cold", "result"]


def test_boards_of_several_workloads_have_their_names_above_them():
    two = board(on("m4.xlarge", 4.0), on("m4.2xlarge", 8.0), on("m4.xlarge", 4.0, workload="mnist-mlp"))
    lines = [line.strip() for line in two.splitlines()]
    assert [lines.index(name) for name in ("digits-mlp", "mnist-mlp")] == [0, 5]
    assert lines[1].startswith("engine")
    assert lines[6].startswith("engine")
    assert "digits-mlp" not in board(on("m4.xlarge", 4.0), on("m4.2xlarge", 8.0)).splitlines()


def test_a_table_of_costs_says_how_many_rows_it_leaves_out():
    many = [on(f"x{size}.large", float(size)) for size in range(1, 15)]
    assert "what digits-mlp costs in money, the cheapest 12 of 14" in board(*many)
    assert "what digits-mlp costs in money, the cheapest first" in board(*many[:12])


def grid(*settings: tuple[float, int, int]) -> list[Record]:
    return [
        trained(f"{cores}-{epochs}-{rows}", cores=cores, params={"epochs": epochs, "train_rows": rows})
        for cores, epochs, rows in settings
    ]


def test_usual_settings_are_given_once():
    own = grid((1.0, 10, 500), (2.0, 10, 500), (1.0, 10_000, 500), (1.0, 10, 1000))
    found = groups(own)
    assert [group.name for group in found[:3]] == ["numpy", "numpy with cores 2", "numpy with epochs 10,000"]
    assert usual_settings(found) == "Unless said otherwise: cores 1, epochs 10, train rows 500."
    assert "Unless said otherwise: cores 1, epochs 10, train rows 500." in board(*own)
    assert usual_settings(groups(own[:2])) is None


def test_settings_without_a_usual_value_are_given_everywhere():
    found = groups(grid(*itertools.product((1.0, 2.0), (10, 10_000), (500, 1000))))
    assert found[0].name == "numpy with cores 1, epochs 10, train rows 500"
    assert usual_settings(found) is None


def test_a_missing_setting_is_named_as_such():
    undisturbed, *others = grid((1.0, 10, 500), (1.0, 10, 500), (2.0, 10, 500), (1.0, 20, 500))
    for other, node in zip(others, (1, 1, 2), strict=True):
        other.params["fault_node"] = node
    found = groups([undisturbed, *others])
    assert [group.name for group in found[:3]] == ["numpy with no fault node", "numpy", "numpy with cores 2"]
    assert usual_settings(found) == "Unless said otherwise: cores 1, epochs 10, fault node 1."
    calm = groups([*grid((1.0, 10, 1), (1.0, 10, 2), (1.0, 20, 1)), others[1]])
    assert calm[0].name == "numpy"
    assert usual_settings(calm) == "Unless said otherwise: cores 1, epochs 10, train rows 1, no fault node."


def test_a_narrow_plan_gives_the_whole_reason_why_a_trial_cannot_run():
    why = "4 nodes with 6.4 cores together are more than the 2 of this machine; take at most 0.5 for each, or fewer"
    trial = {
        "engine": "numpy", "workload": "digits-mlp", "mode": "single", "workers": 4, "cores": 1.6, "memory_gb": None,
        "cluster": "lab", "seed": 1, "params": {}, "status": None, "to_run": True, "unsupported": why, "seconds": 0.0,
    }  # fmt: skip
    file = io.StringIO()
    planned = {"study": "tiny", "trials": [trial], "seconds": 0.0, "from_records": 0}
    print_plan(planned, Console(file=file, width=60, highlight=False, markup=False))
    assert f"Cannot run here: numpy: {why}" in " ".join(file.getvalue().split())
    assert "0 ms" not in file.getvalue()


def test_a_long_name_has_a_line_to_itself():
    assert wrap_parts("  a long name of a setting: ", ["computing 7%", "waiting 93%"], 36) == [
        "  a long name of a setting:",
        "    computing 7%, waiting 93%",
    ]
    assert wrap_parts("  short: ", ["computing 7%", "waiting 93%"], 36) == ["  short: computing 7%, waiting 93%"]


def test_singular_and_plural_in_sentences():
    small = {"params": {"batch_size": 1}, "mode": "sync", "samples_per_s": 1.0}
    own = [trained(f"b{size}", **{**small, "params": {"batch_size": size}}) for size in (1, 10, 100)]
    assert batch_lines(groups(own))[0].startswith("numpy (sync, 1 worker) on digits-mlp")
    slow = {"mode": "sync", "phases_s": {"import": 5.0, "train": 1.0}}
    (sentence,) = start_costs(groups([trained(f"w{n}", workers=n, **slow) for n in (1, 2, 3, 4)]))
    assert "; 1 more started longer than it trained: with so little work" in sentence


def test_an_unknown_reason_is_left_out():
    assert "numpy could not be checked against the reference." in board(trained()).replace("\n", " ")


def test_there_is_no_ratio_to_a_missed_target(workdir, capsys):
    reached = [trained(f"a{seed}", seed=seed, repetition=seed, time_to_target={"0.5": 1.0}) for seed in (1, 2)]
    never = [trained(f"b{seed}", engine="jax", seed=seed, repetition=seed, time_to_target={"0.5": None}, targets=[0.5])
             for seed in (1, 2)]  # fmt: skip
    store(workdir / "out", *reached, *never)
    assert main(["compare", "out", "--engines", "jax", "numpy"]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert row.split() == ["jax", "never", "1.0", "s", "-", "-", "2", "indicative"]


def test_the_best_settings_column_is_headed_by_its_engine(workdir, capsys):
    sync = {"mode": "sync", "workers": 3, "targets": [0.5]}
    slow = trained("slow", engine="ray-torch", **{**sync, "time_to_target": {"0.5": None}})
    store(workdir / "out", trained("fast", engine="torch-ddp", **sync), slow)
    assert main(["compare", "out"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["setting", "each", "torch-ddp", "ratio", "from", "to", "n", "verdict"]
    assert "in 0 of 1 run and torch-ddp (sync, 3 workers) in 1" in " ".join(out.split())


@pytest.mark.parametrize("arguments", [["compare"], ["advise"], ["scale"], ["export", "--to", "csv"], ["sql"]])
def test_a_folder_without_readable_records_is_an_error_that_says_what_to_do(workdir, capsys, arguments):
    folder = store(workdir / "deep" / "down" / "out", trained())
    command, *options = arguments
    query = ["select 1"] if command == "sql" else []
    assert main([command, "deep", *query, *options]) == 2
    assert capsys.readouterr().err == "trainoff: deep: no records here, but deeper; name a folder such as deep/down\n"
    next(folder.glob("*/record.json")).write_text("{")
    assert main([command, str(folder), *query, *options]) == 2
    error = f"trainoff: {folder}: the one record here is damaged; `trainoff show {folder}` says in what way\n"
    assert capsys.readouterr().err == error


def test_published_records_get_no_advice_to_repeat_runs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    engines = ["--engines", "spark-sklearn", "dask-sklearn"]
    assert main(["compare", "published:executors", *engines, "--figure", "train_s"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--repeat" not in out
    assert "These are published figures of one run each: indicative." in out
    assert "(mode not stated, 9 workers) 33.6 s 9.4 s 3.6 - indicative" in out, "the heading names the engine"


def test_a_price_book_that_does_not_apply_is_explained(workdir, capsys):
    by_memory = PriceBook(usd_per_core_hour=0.04, usd_per_gb_hour=0.005)
    assert unpriced([record()], by_memory) == (
        "1 of 1 trial has no price (nodes of 1 core), so no cost is given: memory has a price, and these trials had "
        "no limit; set `memory_gb` in the study, or charge for cores only."
    )
    store(workdir / "out", trained(targets=[0.5]), trained("torch-1", engine="torch", targets=[0.5]))
    (workdir / "mine.toml").write_text("usd_per_core_hour = 0.04\nusd_per_gb_hour = 0.005\n")
    for arguments in (["show"], ["advise"], ["report"]):
        assert main([*arguments, "out", "--prices", "mine.toml"]) == 0
        assert "memory has a price, and these trials had no limit" in " ".join(capsys.readouterr().out.split())
    assert main(["advise", "out", "--prices", "mine.toml", "--max-cost", "1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("trainoff: --max-cost 1: 2 of 2 trials have no price (nodes of 1 core)")
    assert "name a price book" not in err
