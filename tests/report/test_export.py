"""Exports: other tools read what the records contain, and only exports are overwritten."""

import csv
import json
import socket
import subprocess
import sys
from pathlib import Path

import polars
import pytest

from helpers.records import CURVE, store, trained
from helpers.running import environment, invoke
from trainoff.records import scan, table

CRASHED = {"status": "crashed", "reason": "worker 1: RuntimeError: no", "test_accuracy": None, "engine": "torch"}
NO_TENSORFLOW = "import sys; sys.modules['tensorflow'] = None\n"  # an import then raises


@pytest.fixture
def folder(tmp_path) -> Path:
    """A study with a trial that trained and one that crashed."""
    return store(tmp_path / "tiny", trained("numpy-1"), trained("torch-2", **CRASHED))


def export(folder: Path, to: str, *more: object) -> str:
    done = invoke("export", folder, "--to", to, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def error_of(folder: Path, to: str, *more: object) -> str:
    done = invoke("export", folder, "--to", to, *more)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_csv_has_the_records_the_curves_and_the_samples(folder):
    output = export(folder, "csv")
    assert f"2 records exported to {folder / 'export-csv'}" in output
    with (folder / "export-csv" / "records.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["engine"], row["status"], row["test_accuracy"]) for row in rows] == [
        ("numpy", "ok", "0.875"),
        ("torch", "crashed", ""),
    ]
    with (folder / "export-csv" / "curves.csv").open() as file:
        points = [row for row in csv.DictReader(file) if row["trial_id"] == "numpy-1"]
    assert [float(row["accuracy"]) for row in points] == CURVE["accuracy"]
    with (folder / "export-csv" / "samples.csv").open() as file:
        assert [row["role"] for row in csv.DictReader(file)] == ["driver", "machine"] * 2


def test_parquet_has_the_same_with_types(folder):
    export(folder, "parquet")
    place = folder / "export-parquet"
    assert polars.read_parquet(place / "records.parquet").equals(table(scan(folder)[0]))
    curves = polars.read_parquet(place / "curves.parquet")
    assert curves.columns[:4] == ["study", "trial_id", "step", "samples_seen"]
    assert curves["loss"].to_list() == CURVE["loss"] * 2
    assert polars.read_parquet(place / "samples.parquet")["rss"].to_list() == [1000, None] * 2


def test_an_export_is_not_taken_for_a_record(folder):
    for to in ("parquet", "tensorboard"):
        export(folder, to)
    for place in (folder, folder.parent):
        records, damaged = scan(place)
        assert (len(records), damaged) == (2, [])


def test_folders_may_have_been_renamed(folder, monkeypatch):
    renamed = folder.rename(folder.with_name("before"))
    for place, out in ((renamed.parent, "all"), (renamed / "numpy-1", "one")):
        monkeypatch.chdir(place)
        assert invoke("export", ".", "--to", "csv", "-o", renamed.parent / out).returncode == 0
        assert "numpy-1" in (renamed.parent / out / "curves.csv").read_text()


def test_an_export_does_not_write_into_a_record(folder):
    before = sorted((folder / "numpy-1").iterdir())
    assert f"1 record exported to {folder / 'export-csv'}" in export(folder / "numpy-1", "csv")
    assert sorted((folder / "numpy-1").iterdir()) == before


def test_only_exports_are_overwritten(folder, tmp_path):
    place = tmp_path / "mine"
    place.mkdir()
    (place / "records.csv").write_text("precious")
    assert "there are files here that trainoff did not export" in error_of(folder, "csv", "-o", place)
    assert [path.name for path in place.iterdir()] == ["records.csv"]
    assert (place / "records.csv").read_text() == "precious"
    (place / "records.csv").unlink()
    export(folder, "csv", "-o", place)  # an empty folder may be used
    assert "holds an export to csv" in error_of(folder, "parquet", "-o", place)
    assert "nothing can be exported there" in error_of(folder, "csv", "-o", place / "records.csv")


def test_a_second_export_replaces_the_first_and_keeps_other_files(folder, tmp_path):
    place = tmp_path / "board"
    export(folder, "tensorboard", "-o", place)
    (place / "notes.txt").write_text("mine")
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    marker = json.loads((place / "exported.json").read_text())
    (place / "exported.json").write_text(json.dumps({**marker, "files": [*marker["files"], "../outside.txt"]}))
    fewer = store(tmp_path / "fewer", trained("numpy-1"))
    export(fewer, "tensorboard", "-o", place)
    assert sorted(path.name for path in place.iterdir()) == [
        "exported.json",
        "notes.txt",
        "numpy,single,workers=1,seed=1",
    ]
    assert outside.read_text() == "mine"


def test_tensorboard_reads_the_event_files_without_tensorflow(folder):
    arguments = ["export", str(folder), "--to", "tensorboard"]
    call = f"{NO_TENSORFLOW}from trainoff.cli import main; sys.exit(main({arguments!r}))"
    subprocess.run([sys.executable, "-c", call], check=True, env=environment(), capture_output=True)
    seen = read_with_tensorboard(folder / "export-tensorboard")
    good, bad = seen["numpy,single,workers=1,seed=1"], seen["torch,single,workers=1,seed=1"]
    start = 1767323045  # started_at
    assert good["accuracy"] == [[start + 0.5, 10, 0.25], [start + 1.5, 200, 0.5], [start + 2.5, 400, 0.875]]
    assert good["final/train_s"] == [[start + 3.0, 400, 2.0]]
    assert good["final/time_to_target/0.5"] == [[start + 3.0, 400, 1.0]]
    assert "final/time_to_target/0.9" not in good, "a target that was not reached has no figure"
    assert "final/test_accuracy" not in bad
    assert good["hparams"] == {"engine": "numpy", "epochs": 2.0, "status": "ok"}
    assert bad["hparams"]["status"] == "crashed"


READ_BACK = """
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
found = {}
for run in Path(sys.argv[1]).iterdir():
    if run.is_dir():
        one = EventAccumulator(str(run)).Reload()
        found[run.name] = {
            tag: [[point.wall_time, point.step, point.value] for point in one.Scalars(tag)]
            for tag in one.Tags()["scalars"]
        }
        content = one.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
        found[run.name]["hparams"] = {
            name: hparams[name].number_value or hparams[name].string_value for name in ("engine", "epochs", "status")
        }
print(json.dumps(found))
"""


def read_with_tensorboard(place: Path) -> dict[str, dict[str, list[list[float]]]]:
    """Return what TensorBoard's reader finds, in a process that cannot import TensorFlow."""
    call = f"{NO_TENSORFLOW}from pathlib import Path\n{READ_BACK}"
    read = subprocess.run([sys.executable, "-c", call, str(place)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(read.stdout)


def test_mlflow_has_one_run_per_trial(folder, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    export(folder, "mlflow")
    client = MlflowClient((folder / "export-mlflow").as_uri())
    (experiment,) = [one for one in client.search_experiments() if one.name == "tiny"]
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    good, bad = runs["numpy,single,workers=1,seed=1"], runs["torch,single,workers=1,seed=1"]
    assert (good.info.status, bad.info.status) == ("FINISHED", "FAILED")
    assert bad.data.tags["reason"] == CRASHED["reason"]
    assert (good.data.params["engine"], good.data.params["epochs"]) == ("numpy", "2")
    assert good.data.metrics["train_s"] == 2.0
    points = client.get_metric_history(good.info.run_id, "accuracy")
    assert [(one.step, one.timestamp, one.value) for one in points] == [
        (10, 1767323045500, 0.25),
        (200, 1767323046500, 0.5),
        (400, 1767323047500, 0.875),
    ]
    stored = json.loads(Path(client.download_artifacts(good.info.run_id, "record.json")).read_text())
    assert stored == json.loads((folder / "numpy-1" / "record.json").read_text())

    broken = {"trainoff.record": good.data.tags["trainoff.record"]}
    client.create_run(experiment.experiment_id, tags=broken)  # as a killed export leaves it
    store(folder, trained("numpy-3", seed=3))
    assert "3 records exported" in (output := export(folder, "mlflow"))
    assert "2 of them already present" in output
    names = sorted(run.info.run_name for run in client.search_runs([experiment.experiment_id]))
    assert names == ["numpy,single,workers=1,seed=1", "numpy,single,workers=1,seed=3", "torch,single,workers=1,seed=1"]


@pytest.mark.parametrize("extra", ["tensorboard", "mlflow"])
def test_a_missing_module_is_a_one_line_error_with_its_command(folder, extra):
    arguments = ["export", str(folder), "--to", extra]
    call = f"import sys; sys.modules[{extra!r}] = None\nfrom trainoff.cli import main; sys.exit(main({arguments!r}))"
    done = subprocess.run([sys.executable, "-c", call], env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith(f'not installed; pip install "trainoff[{extra}]"\n')


def test_mistakes_are_one_line_errors(tmp_path, folder):
    assert "did you mean `csv`?" in error_of(folder, "csw")
    assert "--uri is the address of an MLflow server" in error_of(folder, "csv", "--uri", "http://127.0.0.1:1")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # it does not listen
        address = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        error = error_of(folder, "mlflow", "--uri", address)
    assert error.endswith(f"{address}: no MLflow server answers at this address; start one, or leave --uri out\n")
    (tmp_path / "empty").mkdir()
    assert "no records here yet; `trainoff run STUDY` makes some" in error_of(tmp_path / "empty", "csv")
    assert "there is no such folder" in error_of(tmp_path / "nowhere", "csv")
    (folder / "numpy-1" / "curve.parquet").write_bytes(b"nonsense")
    assert "curve.parquet: this file is damaged" in error_of(folder, "csv")


def test_names_contain_settings_and_studies(tmp_path):
    out = tmp_path / "out"
    wide = {"hidden": list(range(100))}
    store(out / "a", trained("numpy-1", study="a"), trained("numpy-2", study="a", params={"epochs": 3, **wide}))
    store(out / "b", trained("numpy-1", study="b"))
    export(out, "tensorboard", "-o", tmp_path / "export")
    names = sorted(
        str(path.parent.relative_to(tmp_path / "export")) for path in (tmp_path / "export").glob("**/*.trainoff")
    )
    assert len(names) == 3
    assert "b/numpy,single,workers=1,epochs=2,seed=1" in names
    assert max(map(len, names)) < 150


def test_a_damaged_record_is_named_and_the_others_exported(folder):
    (folder / "torch-2" / "record.json").write_text("{")
    done = invoke("export", folder, "--to", "csv")
    assert done.returncode == 1
    assert "1 record exported" in done.stdout
    assert "torch-2: record.json cannot be read" in done.stderr
