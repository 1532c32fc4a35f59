"""The store: complete records, never rewritten, saved elsewhere when the disk is full; and the table of records."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from helpers.records import commit, record
from helpers.running import HANGS_S, command, environment, only_record, study, trainoff
from trainoff.engines.shared.watch import PHASES
from trainoff.errors import TrainoffError
from trainoff.records import METRICS, DamagedRecord, Record, Store, measured, scan, table, time_to_target
from trainoff.runner.events import AnyEvent

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def store(tmp_path):
    empty = Store(tmp_path / "tiny")
    empty.prepare()
    return empty


def test_a_record_is_read_as_it_was_stored(store):
    folder = commit(store, record(test_accuracy=0.5))
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "record.json"]
    assert store.latest("numpy-1") == record(test_accuracy=0.5)
    assert next(iter(json.loads((folder / "record.json").read_text()))) == "schema_version"


def test_a_second_attempt_does_not_change_the_first(store):
    first = commit(store, record(status="crashed"))
    before = (first / "record.json").read_bytes()
    second = commit(store, record(status="ok"))
    assert (first / "record.json").read_bytes() == before
    assert second.name == "numpy-1.2"
    assert store.latest("numpy-1").attempt == 2


def test_staging_folders_of_killed_runs_are_removed_and_others_kept(store):
    dead = store.folder / ".staging" / "numpy-1-dead"
    dead.mkdir()
    (dead / "lock").touch()
    with store.stage("numpy-2") as staged:
        store.prepare()
        assert staged.exists()
        assert not dead.exists()
    assert not staged.exists()


def test_damaged_records_are_named_and_the_others_shown(tmp_path, store):
    commit(store, record("numpy-1"))
    broken = commit(store, record("numpy-2"))
    (broken / "record.json").write_text('{"schema_version": 1, "trial')
    gone = commit(store, record("numpy-3"))
    (gone / "record.json").unlink()
    mistyped = commit(store, record("numpy-5"))
    (mistyped / "record.json").write_text(json.dumps({**record("numpy-5").to_json(), "phases_s": "all of them"}))
    garbled = commit(store, record("numpy-6"))
    text = (garbled / "record.json").read_bytes()
    (garbled / "record.json").write_bytes(text.replace(b"digits-mlp", b"digits-\xe9lp"))
    foreign = commit(store, record("numpy-4"))
    (foreign / "record.json").write_text('{"schema_version": 99}')
    good, damaged = scan(tmp_path)
    assert [one.trial_id for one in good] == ["numpy-1"]
    assert [type(one) for one in damaged] == [DamagedRecord] * 5
    shown = trainoff("show", store.folder)
    assert shown.returncode == 1
    assert f"{broken}: record.json cannot be read" in shown.stderr
    assert f"{mistyped}: record.json cannot be read: Expected `object`, got `str` - at `$.phases_s`" in shown.stderr
    assert f"{garbled}: record.json cannot be read: 'utf-8' codec" in shown.stderr
    assert f"{gone}: record.json is missing; move it away and run the study again" in shown.stderr
    assert f"{foreign}: its schema version is 99, this trainoff reads 1" in shown.stderr
    assert "numpy" in shown.stdout


@pytest.mark.cluster
def test_a_trial_with_a_damaged_record_is_run_again(tmp_path):
    path, out = study(tmp_path, "numpy"), tmp_path / "out"
    trainoff("run", path, "--out", out)
    (file,) = out.glob("tiny/*/record.json")
    file.write_text("nonsense")
    assert trainoff("run", path, "--out", out).returncode == 0
    assert file.read_text() == "nonsense"
    shutil.rmtree(file.parent)
    assert only_record(out)["attempt"] == 2


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainoffError, match=r"results cannot be written there \(Not a directory\)"):
        Store(tmp_path / "file" / "tiny").prepare()
    done = trainoff("run", study(tmp_path, "numpy"), "--out", tmp_path / "file")
    assert done.returncode == 2
    assert "results cannot be written there (Not a directory); choose another folder" in done.stderr


def run_on_small_disk(folder: Path, size: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command with a disk of this size mounted at `folder`."""
    folder.mkdir()
    mount = f'mount -t tmpfs -o size={size} tmpfs "{folder}" && exec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", *command(*arguments)],
        capture_output=True, text=True, env=environment(), timeout=HANGS_S,
    )  # fmt: skip


@pytest.mark.cluster
@pytest.mark.root
@pytest.mark.namespace
@pytest.mark.parametrize("size", ["4k", "24k", "36k"])
def test_a_full_disk_is_an_error_and_loses_no_trial(tmp_path, size):
    path = study(tmp_path, "numpy", more="batch_size = 10")
    done = run_on_small_disk(tmp_path / "out", size, "run", path, "--out", tmp_path / "out")
    assert done.returncode in (1, 2)
    assert "No space left on device" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    for saved in re.findall(r"the finished trial is kept in (\S+)$", done.stderr):
        assert json.loads((Path(saved) / "record.json").read_text())["engine"] == "numpy"
        shutil.rmtree(saved)


def test_a_record_that_cannot_be_stored_is_saved_elsewhere(store, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(TrainoffError, match=r"No space left.*; the finished trial is kept in") as caught:
            commit(store, record(test_accuracy=0.5))
    saved = Path(str(caught.value).rsplit(" ", 1)[1])
    assert json.loads((saved / "record.json").read_text())["test_accuracy"] == 0.5
    assert (saved / "log.txt").read_text() == "hello\n"
    assert store.latest("numpy-1") is None
    shutil.rmtree(saved)


def test_the_table_has_a_row_per_record_and_a_column_per_parameter():
    rows = table([record("numpy-1", params={"epochs": 2}), record("numpy-2", params={"epochs": 3, "tau": 8})])
    assert rows["params.epochs"].to_list() == [2, 3]
    assert rows["params.tau"].to_list() == [None, 8]


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        ([0.5, 0.8, 0.9], None),
        ([0.5, 0.96, 0.97], 2.0),
        ([0.5, 0.96, 0.94, 0.96, 0.97], 4.0),  # the first crossing does not hold
        ([0.5, 0.8, 0.95], 3.0),  # the last snapshot counts, and equality reaches the target
        ([0.5, 0.95, 0.95, 0.2], 2.0),  # a later dip does not matter
        ([0.96, 0.94, 0.96, 0.94], None),  # never held
        ([0.96], 1.0),
        ([], None),
    ],
)
def test_time_to_target_is_the_first_crossing_that_holds(accuracy, expected):
    assert time_to_target([1.0, 2.0, 3.0, 4.0, 5.0][: len(accuracy)], accuracy, 0.95) == expected


def test_an_error_crosses_its_target_downwards():
    errors = [0.3, 0.19, 0.21, 0.2, 0.1, float("nan")]
    assert time_to_target([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], errors, 0.2, METRICS["error"]) == 4.0
    assert time_to_target([5.0, 6.0], errors[4:], 0.2, METRICS["error"]) is None  # nan does not confirm a crossing


def test_an_error_that_equals_its_target_has_reached_it():
    rows = [{"accuracy": accuracy, "loss": 1.0} for accuracy in (0.5, 0.7, 0.7)]
    assert 1 - 0.7 > 0.3, "in floating point"
    assert time_to_target([1.0, 2.0, 3.0], [measured(row)["error"] for row in rows], 0.3, METRICS["error"]) == 2.0


def rows_of(first: str, last: str) -> dict[str, str]:
    """Return the tables between two headings of docs/records.md: the rest of each row by the name that it is about."""
    page = (DOCS / "records.md").read_text()
    part = page[page.index(f"\n{first}\n") : page.index(f"\n{last}\n")]
    return dict(re.findall(r"^\| `([a-z0-9_-]+)` \| (.*) \|$", part, re.MULTILINE))


KINDS = {kind.__struct_config__.tag: kind for kind in get_args(AnyEvent)}
SAMPLES = {"sample", "host-sample", "node"}  # they have their own file


def test_every_kind_of_event_is_documented():
    assert rows_of("## events.jsonl", "## The table").keys() == KINDS.keys() - SAMPLES


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - SAMPLES))
def test_every_field_of_an_event_is_documented(kind):
    _, fields = rows_of("## events.jsonl", "## The table")[kind].split(" | ")
    named, expected = set(re.findall("`([^`]+)`", fields)), set(KINDS[kind].__struct_fields__) - {"t"}
    assert expected <= named
    assert named - expected <= KINDS.keys() | set(PHASES), "these are named where a field is explained"


def test_every_field_of_a_record_is_documented():
    assert rows_of("### Identity", "### Fault").keys() == Record.__dataclass_fields__.keys()
