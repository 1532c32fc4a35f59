"""The published figures, with their typing errors, and the records made of them."""

import json
import re

import polars
import pytest

import trainoff
from helpers.running import invoke
from trainoff.analysis import SettingGroup, groups, newest
from trainoff.clusters.spark import allocate
from trainoff.errors import TrainoffError
from trainoff.records import PUBLISHED, table
from trainoff.reproductions.published import documents, names, parse_number, parse_seconds, parse_share, records
from trainoff.study.machines import shipped
from trainoff.study.workloads import workloads

BY_ID = {document.id: document for document in documents()}
MACHINES = "machines-and-clusters"


def one(name, **facts):
    """Return the only published record with these facts; `machine` and others may be parameters."""
    found = [
        record
        for record in records(name)
        if all({**record.params, **vars(record)}[key] == value for key, value in facts.items())
    ]
    assert len(found) == 1, facts
    return found[0]


def test_there_are_five_documents_and_their_tables_have_a_cell_for_every_column():
    assert [document.id for document in documents()] == ["000", "001", "002", "003", "004"]
    for document in documents():
        for printed in document.table:
            assert len(printed.units) == len(printed.columns), printed.name
            assert {len(row) for row in printed.rows} == {len(printed.columns)}, printed.name
    assert [len(document.table) for document in documents()] == [0, 1, 3, 2, 8]


def test_table_names_are_unique_in_a_document_that_uses_a_number_twice():
    tables = [printed.name for printed in BY_ID["004"].table]
    assert len(set(tables)) == len(tables)
    assert [name for name in tables if name.startswith("Table 1:")] == [
        "Table 1: Spark configurations",
        "Table 1: Spark Results with 1st configuration",
    ]


def test_every_published_run_is_a_record_of_its_own_kind():
    every = {name: records(name) for name in names()}
    assert {name: len(found) for name, found in every.items()} == {
        "sync-async": 4,
        MACHINES: 50,  # 11 machines by 4 columns, and 3 larger clusters by 2
        "batch-size": 8,
        "executors": 24,
    }
    for name, found in every.items():
        assert {(record.kind, record.study) for record in found} == {(PUBLISHED, name)}
        assert len({record.trial_id for record in found}) == len(found)
        assert len(newest(found)) == len(found), "no two are attempts at the same trial"
        assert {record.workload for record in found} <= set(workloads())
        assert {record.status for record in found} <= {"ok", "out-of-memory"}
        for record in found:
            assert re.match(r"00\d, ", record.notes["source"])


@pytest.mark.parametrize(
    ("name", "facts", "train_s", "accuracy"),
    [
        (MACHINES, {"engine": "tensorflow", "workload": "mnist-mlp", "machine": "m4.4xlarge"}, 46.532, None),
        (MACHINES, {"engine": "tensorflow", "workload": "emnist-mlp", "machine": "c3.xlarge"}, 385.979, None),
        (MACHINES, {"engine": "spark-mllib", "workload": "mnist-mlp", "machine": "c3.2xlarge"}, 264.9625, None),
        (MACHINES, {"engine": "spark-mllib", "workload": "emnist-mlp", "workers": 17}, 679.941, None),
        ("batch-size", {"mode": "sync", "batch_size": 10000}, 71, None),
        ("batch-size", {"mode": "async", "batch_size": 1}, 140, None),
        ("executors", {"engine": "spark-sklearn", "cores": 4, "epochs": 1000}, 18 * 60 + 48, 0.977),
        ("executors", {"engine": "spark-sklearn", "workers": 5, "epochs": 10}, 42, 0.9051),
        ("executors", {"engine": "dask-sklearn", "memory_gb": 13, "epochs": 100}, 89, 0.954),
    ],
)
def test_figures_are_as_printed(name, facts, train_s, accuracy):
    record = one(name, **facts)
    assert (record.train_s, record.test_accuracy) == (train_s, accuracy)


def test_a_published_failure_is_a_failed_record():
    failed = [record for record in records(MACHINES) if record.failed]
    assert [(record.params["machine"], record.engine, record.workload) for record in failed] == [
        ("c3.xlarge", "spark-mllib", "emnist-mlp")
    ]
    assert (failed[0].status, failed[0].train_s, failed[0].cost_usd) == ("out-of-memory", None, None)
    assert "7.5 GB" in failed[0].reason


def test_unpublished_figures_are_null():
    record = one("sync-async", document="003", mode="async")
    assert (record.train_s, record.test_accuracy, record.memory_gb, record.network_bytes) == (None, None, None, None)
    assert (record.workers, record.cores) == (0, 0), "not stated"
    assert record.training == {"cpu_share": 0.7}
    assert record.counts == {"network_read_m": 182, "network_write_m": 182}
    assert record.steps == 10000


def test_machines_have_the_sizes_and_prices_of_the_appendix():
    printed = BY_ID["002"].the_table("Appendix C")
    sizes = {
        row[1]: {"cores": parse_number(row[2]), "memory_gb": parse_number(row[3]), "usd_per_hour": parse_number(row[4])}
        for row in printed.rows
    }
    assert sizes == shipped(), "the catalogue of machines has the same sizes"


def test_the_speed_up_of_figure_4():
    def times(workload):
        own = [record for record in records(MACHINES) if record.workload == workload]
        return {
            record.workers: record.train_s
            for record in own
            if record.engine == "spark-mllib" and record.params["machine"] == "m4.xlarge"
        }

    small, large = times("mnist-mlp"), times("emnist-mlp")
    assert list(small) == list(large) == [1, 3, 5, 17]
    assert all(abs(small[1] / spent - 1) < 0.02 for spent in small.values()), "no speed-up on the small data"
    assert large[1] / large[3] == pytest.approx(1.179, abs=1e-3)
    assert large[1] / large[5] == pytest.approx(1.741, abs=1e-3)
    assert large[5] / large[17] == pytest.approx(1.0, abs=1e-3), "nothing beyond"


def test_the_resource_table_agrees_with_the_rule_except_for_one_rounding():
    facts = {fact.name: fact.value for fact in BY_ID["004"].fact}
    nodes, cores, memory = facts["nodes"], facts["cores"] / facts["nodes"], facts["memory per node"]
    printed = [
        [parse_number(cell) for cell in row] for row in BY_ID["004"].the_table("Table 1: Spark configurations").rows
    ]
    found = [allocate(int(nodes), int(cores), memory, each) for each, _, _ in printed]
    assert [[each.cores, each.count] for each in found] == [row[:2] for row in printed]
    assert [each.memory_gb for each in found] == [10, 13, 19]
    assert [row[2] for row in printed] == [11, 13, 19], "10.6 was rounded up, 13.75 down"
    dask = BY_ID["004"].the_table("Table 2: Dask configurations").rows
    assert [[parse_number(cell) for cell in row] for row in dask] == printed


def test_typing_errors_are_kept_and_noted():
    printed = {slip.printed: slip.note for document in documents() for slip in document.slip}
    assert "Appendix C" in printed["Appendix B lists the instance types that we used."]
    assert "m4" in printed["they would perform slightly better than the r4 series"]
    assert "9.2" in printed["23/5 * 2 = 8"]
    assert any("11 GR memory" in each for each in printed)
    assert BY_ID["002"].the_table("Appendix C").columns[0] != "Type", "in Cyrillic letters, as in the text"
    assert all(note for note in printed.values())


@pytest.mark.parametrize(
    ("printed", "value"),
    [("332.476", 332.476), ("128s", 128), ("9.45 s", 9.45), ("4min 25s", 265), ("1 min 32 s", 92), ("5 min 12s", 312)],
)
def test_times_are_parsed_as_printed(printed, value):
    assert parse_seconds(printed) == value


@pytest.mark.parametrize("read", [parse_seconds, parse_number, parse_share])
@pytest.mark.parametrize("printed", ["", "above 8", "min", "12 parsecs", "-3"])
def test_texts_without_a_figure_are_refused(read, printed):
    with pytest.raises(ValueError, match="is not"):
        read(printed)


def test_shares_are_exact_to_the_printed_digit():
    assert [parse_share(text) for text in ("91.64%", "97%", "100%")] == [0.9164, 0.97, 1.0]
    with pytest.raises(ValueError, match="is not per cent"):
        parse_share("0.97")


def test_published_and_measured_records_have_different_groups():
    published = one("executors", engine="dask-sklearn", cores=4, epochs=10)
    measured = type(published)(**{**vars(published), "kind": "measured"})
    found = groups([published, measured])
    assert [group.label["kind"] for group in found] == ["published", "measured"]


@pytest.mark.parametrize("name", names())
def test_published_records_can_be_analysed(name):
    results = trainoff.load(f"published:{name}")
    assert all(isinstance(group, SettingGroup) for group in groups(results.records))
    frame = results.table()
    assert frame.height == len(results.records)
    assert set(frame["kind"]) == {PUBLISHED}
    assert isinstance(table(results.records), polars.DataFrame)
    assert "These figures were published" in results.board()


def test_the_board_of_published_records():
    machines = trainoff.load(f"published:{MACHINES}").board(200)
    assert "tensorflow on mnist-mlp with machine m4.4xlarge trained in the shortest time" in machines
    assert "could not be checked" not in machines
    loads = trainoff.load("published:sync-async").board()
    assert "no target to reach, and no times or results were recorded" in " ".join(loads.split())
    assert "0 workers" not in loads
    assert "came furthest with an accuracy of 0.9770" in trainoff.load("published:executors").board(200)


def test_charts_of_published_records(tmp_path):
    scaling = trainoff.load(f"published:{MACHINES}").plot("scaling", x="train_s", workload="emnist-mlp")
    assert scaling.save(tmp_path / "scaling.svg").read_text().startswith("<svg")
    pareto = trainoff.load("published:executors").plot("pareto")
    assert pareto.save(tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")


def test_commands_accept_a_published_name_as_a_folder(tmp_path):
    shown = invoke("show", "published:executors", "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert {record["kind"] for record in json.loads(shown.stdout)} == {"published"}
    reported = invoke("report", f"published:{MACHINES}", "--markdown", cwd=tmp_path)
    assert reported.stdout.splitlines()[-1] == f"Report: published-{MACHINES}-report.md"
    assert "m4.4xlarge" in (tmp_path / f"published-{MACHINES}-report.md").read_text()
    exported = invoke("export", "published:batch-size", "--to", "csv", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "published-batch-size-export-csv" / "records.csv").is_file()
    queried = invoke("sql", "published:batch-size", "select count(*) as n from records", "--json", cwd=tmp_path)
    assert json.loads(queried.stdout) == [{"n": 8}]


def test_published_records_cannot_be_viewed_live(tmp_path):
    done = invoke("view", "published:executors", "--no-browser", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "trainoff: published:executors: published records do not change; `trainoff report published:executors` "
        "writes the page\n",
    )


def test_an_unknown_name_is_an_error_with_a_suggestion():
    with pytest.raises(TrainoffError, match=r"^published:executers: .* did you mean `executors`\?$"):
        trainoff.load("published:executers")
    with pytest.raises(TrainoffError, match="there are figures of sync-async, machines-and-clusters"):
        trainoff.load("published:")
    with pytest.raises(TrainoffError, match="it has no published figures"):
        trainoff.load("published:ml-parameters")
