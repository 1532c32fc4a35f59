"""Cost in money: of every published run, to a target, and by another price book."""

import json
import math
from pathlib import Path

import pytest

from helpers.records import make_record, write_study_folder
from helpers.running import invoke, only_record, study
from trainoff.analysis import groups, priced, unpriced
from trainoff.analysis.cost import cost_of_trial, cost_to, costs
from trainoff.analysis.format import dollars
from trainoff.errors import TrainoffError
from trainoff.reproductions.published import records
from trainoff.study import machines
from trainoff.study.machines import PriceBook, read_prices, shipped

# Appendix A times Appendix C, in dollars: seconds times price by 3600, to six places, computed apart from the code.
BY_HAND = {  # spark_small, spark_large, tf_small, tf_large
    "c3.xlarge": (0.019394, None, 0.005289, 0.022515),
    "m3.xlarge": (0.026303, 0.098804, 0.007220, 0.031257),
    "m4.xlarge": (0.016910, 0.065733, 0.005103, 0.021503),
    "r3.xlarge": (0.031790, 0.117515, 0.008611, 0.036868),
    "c3.2xlarge": (0.030912, 0.096827, 0.007323, 0.031352),
    "m3.2xlarge": (0.036849, 0.114621, 0.009702, 0.041469),
    "m4.2xlarge": (0.021642, 0.067069, 0.006903, 0.029771),
    "r3.2xlarge": (0.039358, 0.121875, 0.011736, 0.050797),
    "c3.4xlarge": (0.050496, 0.102334, 0.011473, 0.049403),
    "m4.4xlarge": (0.038703, 0.068467, 0.010340, 0.044370),
    "r3.4xlarge": (0.071511, 0.128205, 0.018482, 0.078958),
}
COLUMNS = [("spark-mllib", "mnist-mlp"), ("spark-mllib", "emnist-mlp"), ("tensorflow", "mnist-mlp")]
COLUMNS += [("tensorflow", "emnist-mlp")]
OF_CLUSTERS = {  # of m4.xlarge at 0.2 dollars: nodes to the cost on the small data and on the large
    3: (0.051568, 0.167212),
    5: (0.084450, 0.188796),
    17: (0.287216, 0.642166),
}
MINE = '[machine]\n"mine" = { cores = 2, memory_gb = 4, usd_per_hour = 0.36 }\n'

SHIPPED = read_prices(Path(machines.__file__).with_name("machines.toml"))


def published(engine, workload, machine, workers):
    (found,) = [
        record
        for record in records("machines-and-clusters")
        if (record.engine, record.workload, record.params["machine"], record.workers)
        == (engine, workload, machine, workers)
    ]
    return found


@pytest.mark.parametrize("machine", BY_HAND)
def test_the_cost_of_every_published_run_on_one_machine(machine):
    for (engine, workload), usd in zip(COLUMNS, BY_HAND[machine], strict=True):
        found = published(engine, workload, machine, 1).cost_usd
        assert (found is None) if usd is None else found == pytest.approx(usd, abs=6e-7)


@pytest.mark.parametrize("nodes", OF_CLUSTERS)
def test_the_cost_of_every_published_run_on_a_cluster(nodes):
    for workload, usd in zip(("mnist-mlp", "emnist-mlp"), OF_CLUSTERS[nodes], strict=True):
        assert published("spark-mllib", workload, "m4.xlarge", nodes).cost_usd == pytest.approx(usd, abs=6e-7)


def test_the_cheapest_published_run_is_on_the_cheapest_machine():
    cheapest = [
        min(
            (record for record in records("machines-and-clusters") if (record.engine, record.workload) == column),
            key=lambda record: math.inf if record.cost_usd is None else record.cost_usd,
        )
        for column in COLUMNS
    ]
    assert {record.params["machine"] for record in cheapest} == {"m4.xlarge"}


def test_the_shipped_price_book_has_a_date_a_source_and_eleven_machines():
    book = SHIPPED
    assert (book.date, len(book.machines)) == ("spring 2017", 11)
    assert "Appendix C" in book.source
    assert {name: facts.usd_per_hour for name, facts in book.machines.items()} == {
        name: facts["usd_per_hour"] for name, facts in shipped().items()
    }


def test_the_cost_of_the_training_the_trial_and_a_target():
    record = make_record("torch", usd_per_hour=3600.0)  # a dollar a second
    assert (record.usd(record.train_s), cost_of_trial(record)) == (4.0, 6.0)
    assert (cost_to(record, 0.95), cost_to(record, 0.97)) == (1.0, 2.0)
    assert cost_to(record, 0.5) is None, "this target was not timed"
    never = make_record("torch", usd_per_hour=3600.0, time_to_target={"0.95": 1.0, "0.97": None})
    assert cost_to(never, 0.97) == math.inf
    assert cost_of_trial(make_record("torch")) is None
    assert cost_to(make_record("torch"), 0.95) is None


def test_settings_are_ordered_by_the_cost_of_the_target():
    expensive = [make_record("expensive", seed, 2.0, usd_per_hour=7200.0) for seed in (1, 2, 3)]
    cheap = [make_record("cheap", seed, 1.5, usd_per_hour=3600.0) for seed in (1, 2, 3)]
    never = [make_record("never", 1, usd_per_hour=1.0, time_to_target={"0.95": None, "0.97": None})]
    found = costs(groups([*expensive, *cheap, *never, make_record("unknown")]), 0.97)
    assert [cost.group.first.engine for cost in found] == ["cheap", "expensive", "never"]
    assert [cost.to_target for cost in found] == pytest.approx([2 / 1.5, 2.0, math.inf])
    assert [cost.run for cost in costs(groups(expensive))] == [4.0]


def test_a_target_that_is_never_reached_costs_infinitely_much():
    free = make_record("never", usd_per_hour=0.0, targets=[0.97], time_to_target={"0.97": None})
    assert cost_to(free, 0.97) == math.inf


def test_a_price_book_has_prices_by_machine_by_scale_and_by_size():
    book = PriceBook(machines=SHIPPED.machines, usd_per_core_hour=0.1, usd_per_gb_hour=0.01)
    assert book.usd_per_hour("m4.xlarge", 4, 16) == 0.2
    assert book.usd_per_hour("m4.xlarge", 0.4, 3.2, scale=0.1) == pytest.approx(0.02)
    assert book.usd_per_hour(None, 2, 4) == pytest.approx(0.24)
    assert book.usd_per_hour("theirs", 2, 4) == pytest.approx(0.24)
    assert book.usd_per_hour(None, 2, None) is None, "memory is charged and not known"
    assert SHIPPED.usd_per_hour(None, 2, 4) is None


def test_another_price_book_replaces_the_prices_of_records():
    record = make_record("torch", usd_per_hour=1.0, cost_usd=9.0, workers=3, cores=2.0)
    (found,) = priced([record], PriceBook(usd_per_core_hour=0.6))
    assert (found.usd_per_hour, found.cost_usd) == pytest.approx((3.6, 0.004))
    assert record.cost_usd == 9.0, "a record is never edited"
    (unknown,) = priced([record], SHIPPED)
    assert (unknown.usd_per_hour, unknown.cost_usd) == (None, None)
    unlike = make_record(
        "torch", params={"nodes": [{"cores": 1, "memory_gb": 1}, {"cores": 3, "memory_gb": 2}]}, workers=2
    )
    assert priced([unlike], PriceBook(usd_per_core_hour=0.5))[0].usd_per_hour == 2.0


def test_trials_without_a_price_are_named():
    assert unpriced([make_record("torch", usd_per_hour=1.0)]) is None
    sentence = unpriced([make_record("torch", usd_per_hour=1.0), make_record("numpy", params={"machine": "x9.huge"})])
    assert sentence == "1 of 2 trials has no price (x9.huge), so no cost is given for it."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there is no price in it"),
        ("x = [", "this is not TOML"),
        (
            "usd_per_core_huor = 1",
            "`usd_per_core_huor` is not a key of a price book; did you mean `usd_per_core_hour`?",
        ),
        ("usd_per_core_hour = -1", "`usd_per_core_hour` is `-1`; expected a number, at least 0"),
        ("usd_per_gb_hour = nan", "`usd_per_gb_hour` is `nan`; expected a number, at least 0"),
        (f"usd_per_gb_hour = 1{'0' * 400}", "expected a number, at least 0"),
        (f"usd_per_gb_hour = 1{'0' * 5000}", "this is not TOML"),
        ("usd_per_gb_hour = true", "`usd_per_gb_hour` is `True`; expected a number"),
        ("machine = 3", "`machine` must be a table of machine types"),
        ("[machine]\nmine = 3", "machine `mine` must be a table"),
        (MINE.replace("cores = 2, ", ""), "machine `mine` lacks `cores`"),
        (MINE.replace("cores = 2", "cores = 0"), "machine `mine`: `cores` is `0`; expected a number, above 0"),
        (MINE.replace("cores", "corse"), "machine `mine`: `corse` is not known; did you mean `cores`?"),
        (MINE.replace("usd_per_hour = 0.36", 'usd_per_hour = "1"'), "`usd_per_hour` is `1`; expected a number"),
        ("date = []\n" + MINE, "`date` must be a text"),
    ],
)
def test_a_mistake_in_a_price_book_is_a_one_line_error(tmp_path, text, sentence):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(TrainoffError) as caught:
        read_prices(path)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_price_book_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b"source = '\xe9'")
    for name, sentence in (
        ("nowhere.toml", "there is no such file"),
        ("", "this is a folder"),
        ("latin.toml", "UTF-8"),
    ):
        with pytest.raises(TrainoffError, match=sentence):
            read_prices(tmp_path / name)


def test_a_price_book_may_have_its_date_without_quotes(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("date = 2026-11-16\n" + MINE)
    book = read_prices(path)
    assert (book.date, book.machines["mine"].usd_per_hour) == ("2026-11-16", 0.36)


def test_the_commands_take_a_price_book(tmp_path):
    folder = write_study_folder(tmp_path / "made", [make_record("torch", 1, 2.0), make_record("numpy", 1)])
    (tmp_path / "mine.toml").write_text("usd_per_core_hour = 0.9\n")
    shown = invoke("show", folder, "--prices", tmp_path / "mine.toml", "--json")
    found = {record["engine"]: record["cost_usd"] for record in json.loads(shown.stdout)}
    assert found == pytest.approx({"torch": 0.0005, "numpy": 0.001})
    assert "what digits-mlp costs in money" in invoke("show", folder, "--prices", tmp_path / "mine.toml").stdout
    assert "in money" not in invoke("show", folder).stdout
    both = invoke("report", folder, "--prices", tmp_path / "mine.toml", "--usd-per-core-hour", "1")
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)
    assert "give one of them" in both.stderr
    (tmp_path / "other.toml").write_text(MINE)
    reported = invoke("report", folder, "--prices", tmp_path / "other.toml")
    assert "2 of 2 trials have no price (nodes of 1 core), so no cost is given." in reported.stdout


def test_the_report_has_an_axis_of_money_if_every_trial_has_a_price(tmp_path):
    priced_records = [make_record("torch", usd_per_hour=1.0), make_record("numpy", usd_per_hour=2.0)]
    write_study_folder(tmp_path / "all", priced_records)
    write_study_folder(tmp_path / "some", [priced_records[0], make_record("numpy")])
    for name in ("all", "some"):
        assert invoke("report", tmp_path / name).returncode == 0
        assert ("US dollars" in (tmp_path / name / "report.html").read_text()) == (name == "all")


@pytest.mark.cluster
@pytest.mark.lab
def test_a_trial_on_a_machine_with_a_price_records_its_cost(tmp_path):
    more = '[cluster]\nkind = "lab"\nmachine = "m4.xlarge"\nscale = 0.1\nmemory_scale = 0.2\n'
    done = invoke("run", study(tmp_path, "numpy", more=more), "--out", tmp_path / "results")
    assert done.returncode == 0, done.stdout + done.stderr
    record = only_record(tmp_path / "results")
    assert record["kind"] == "measured"
    assert record["usd_per_hour"] == pytest.approx(0.02), "a tenth of the machine at a tenth of its price"
    assert record["cost_usd"] == pytest.approx(record["train_s"] / 3600 * 0.02)


@pytest.mark.parametrize(
    ("usd", "text"), [(None, "-"), (math.inf, "never"), (0.0, "$0.00"), (1234.5, "$1,234.50"), (0.0169103, "$0.017")]
)
def test_money_has_two_significant_digits(usd, text):
    assert dollars(usd) == text
