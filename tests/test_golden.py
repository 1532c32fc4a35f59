"""The output of commands on real records of an earlier version is that version's output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trainoff
from golden.cases import FOLDERS, PLUGINS, RECORDS
from golden.outputs import CASES, EXPECTED, differences, output_of
from helpers.running import invoke

STATUSES = {
    *("ok", "timeout", "out-of-memory", "diverged", "start-failed"),
    *("crashed", "wrong-result", "unsupported", "interrupted"),
}
RENEW = "if this is intended, run tests/golden/renew.py"


def shipped() -> set[str]:
    """Return the engines that ship."""
    listed = json.loads(invoke("engines", "--json").stdout)
    return {row["name"] for row in listed} - set(PLUGINS)


def test_every_case_has_its_file_and_every_file_its_case() -> None:
    assert sorted(path.stem for path in EXPECTED.glob("*.json")) == sorted(CASES), RENEW


@pytest.mark.parametrize("name", CASES)
def test_the_output_is_that_of_the_earlier_version(name: str, tmp_path: Path) -> None:
    expected = json.loads((EXPECTED / f"{name}.json").read_text())
    assert differences(expected, output_of(name, tmp_path)) == [], RENEW


@pytest.mark.parametrize("folder", FOLDERS)
def test_show_prints_the_records_unchanged(folder: str) -> None:
    listed = json.loads(invoke("show", RECORDS / folder, "--json").stdout)
    assert listed
    for one in listed:
        attempt = "" if one["attempt"] == 1 else f".{one['attempt']}"
        path = RECORDS / folder / f"{one['trial_id']}{attempt}" / "record.json"
        assert differences(json.loads(path.read_text()), one) == []


def test_the_records_have_every_engine_and_every_status() -> None:
    found = {folder: list(trainoff.load(RECORDS / folder).records) for folder in FOLDERS}
    paths = list(RECORDS.glob("*/*/record.json"))
    every = [record for records in found.values() for record in records]
    assert len(paths) == len(every) + 1, "one trial has two attempts"
    assert {record.engine for record in found["engines"] if record.status == "ok"} == shipped()
    assert {record.status for record in found["statuses"]} == STATUSES
    assert {record.mode for record in every} >= {"single", "sync", "async", "local"}
    assert {record.cluster for record in every} == {"processes", "lab"}
    assert any(record.fault for record in every)
    assert any(record.cost_usd for record in every)


def test_plugins_are_found_by_their_entry_points() -> None:
    listed = {row["name"]: row for row in json.loads(invoke("engines", "--json").stdout)}
    assert set(PLUGINS) <= set(listed)
    assert listed["talker"]["modes"] == ["sync"]
    assert (listed["broken"]["status"], listed["needy"]["status"]) == ("unavailable", "unavailable")


def test_a_changed_number_is_noticed() -> None:
    before = json.loads((EXPECTED / "scale.json").read_text())
    assert differences(before, before) == []
    assert differences({"s": [1.0, None]}, {"s": [1.0 + 1e-10, None]}) == []
    assert differences({"s": [1.0, None]}, {"s": [1.0 + 1e-8, None]}) == ["/s/0: expected 1.0, found 1.00000001"]
    assert differences({"a": 1}, {"b": 1}) == ["/a: expected 1, found '(nothing)'", "/b: expected '(nothing)', found 1"]
    assert differences([True], [1]) == ["/0: expected True, found 1"]
