"""`trainoff sql`: tables, JSON, and one-line errors."""

import json
import shutil

import pytest

from helpers.records import store, trained
from helpers.running import invoke

ZERO = "(train_s - train_s)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study of three trials."""
    fast = {"train_s": 1.0, "time_to_target": {"0.97": 0.5}}
    return store(
        tmp_path_factory.mktemp("asked") / "tiny",
        trained("numpy-1", **fast),
        trained("torch-1", engine="torch"),
        trained("torch-2", engine="torch", seed=2, params={"epochs": 9}, train_s=4.0),
    )


def output(folder, query, *more):
    done = invoke("sql", folder, query, *more, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(folder, query):
    return json.loads(output(folder, query, "--json"))


def error(folder, query):
    done = invoke("sql", folder, query)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("trainoff: ").strip()


def test_the_three_tables_can_be_joined(folder):
    query = (
        "select r.engine, max(c.accuracy) as best, count(distinct s.role) as roles from records r "
        "join curves c using (trial_id) join samples s using (trial_id) group by r.engine order by r.engine"
    )
    assert rows(folder, query) == [
        {"engine": "numpy", "best": 0.875, "roles": 2},
        {"engine": "torch", "best": 0.875, "roles": 2},
    ]


def test_columns_with_a_dot_need_no_quotes(folder):
    query = "select engine, r.params.epochs as n, 'params.epochs' as text from records r where params.epochs > 2"
    assert rows(folder, query) == [{"engine": "torch", "n": 9, "text": "params.epochs"}]
    query = 'select "time_to_target.0.97" as s from records where time_to_target.0.97 is not null'
    assert rows(folder, query) == [{"s": 0.5}]


def test_a_table_fits_the_terminal_and_names_left_out_columns(folder):
    table = output(folder, "select * from records")
    assert max(map(len, table.splitlines())) <= 80
    assert table.startswith("trial_id")
    assert "no room for" in table
    assert "test_accuracy" in table
    lines = output(folder, "select engine, train_s, cost_usd from records order by train_s").splitlines()
    assert [line.split() for line in lines] == [
        ["engine", "train_s", "cost_usd"],
        ["numpy", "1", "-"],
        ["torch", "2", "-"],
        ["torch", "4", "-"],
    ]
    assert output(folder, "select engine from records where false").strip() == "no rows"


def test_nan_is_null_in_json(folder):
    assert rows(folder, f"select {ZERO} / {ZERO} as nothing, 1.5 as half from records limit 1") == [
        {"nothing": None, "half": 1.5}
    ]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select engin from records", "there is no column `engin`; did you mean `engine`?"),
        ("select r.engin from records r", "there is no column `engin`; did you mean `engine`?"),
        ("select params.epoch from records", "there is no column `params.epoch`; did you mean `params.epochs`?"),
        ("select accurac from curves", "there is no column `accurac`; did you mean `accuracy`?"),
        ("select xyzzy from records", "there is no column `xyzzy`; `select * from records` shows all columns"),
        ("select engine from recods", "there is no table `recods`; did you mean `records`?"),
        ("select engine from xyzzy", "there is no table `xyzzy`; the tables are records, curves, samples"),
        ("drop table records", "a query begins with `select`, as in `select engine, train_s from records`"),
    ],
)
def test_a_mistake_is_a_one_line_error_with_a_suggestion(folder, query, message):
    assert error(folder, query) == message


def test_other_mistakes_are_one_line_errors(folder, tmp_path):
    assert "this query is not understood: Expected" in error(folder, "select engine fro records where")
    assert "no records here yet; `trainoff run STUDY` makes some" in error(tmp_path, "select 1")


def test_a_damaged_record_is_named(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "tiny")
    (copy / "numpy-1" / "record.json").write_text("{")
    done = invoke("sql", copy, "select engine from records")
    assert (done.returncode, done.stdout.split()) == (1, ["engine", "torch", "torch"])
    assert "numpy-1: record.json cannot be read" in done.stderr
