"""The checks of claims: each can confirm, refute and find nothing to compare; the command and its page."""

import io
import json
from collections.abc import Sequence

import pytest
from rich.console import Console

from helpers.records import store, trained
from helpers.running import invoke
from trainoff import engines, study
from trainoff.cli.reproduce import print_claims
from trainoff.records import Record
from trainoff.reproductions import (
    CONFIRMED,
    NOT_COMPARABLE,
    REFUTED,
    REPRODUCTIONS,
    evaluate,
    ratio_charts,
    scale_text,
    study_files,
    verdict_counts,
)
from trainoff.reproductions.evidence import CHECKS, Evidence
from trainoff.reproductions.published import claims
from trainoff.reproductions.verdicts import finding_on
from trainoff.study.machines import shipped

SMALL, LARGE = 15_000, 60_000


def verdicts(name: str, records: Sequence[Record]) -> dict[str, str]:
    return {one.claim.id: one.finding.verdict for one in evaluate(name, records)}


def test_every_claim_has_its_check_and_every_check_its_claim():
    assert {claim.test for claim in claims() if claim.test} == set(CHECKS)


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_its_studies_can_be_read_and_have_a_scale(name):
    paths = study_files(name)
    assert paths
    for path in paths:
        assert study.read(path, engines.facts(), overrides=(), repeat=None).name == path.stem
        assert len(scale_text(path)) > 40


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_without_records_nothing_is_comparable(name):
    judged = [one for one in evaluate(name, []) if one.claim.test]
    assert judged
    assert {one.finding.verdict for one in judged} == {NOT_COMPARABLE}
    assert all(one.finding.reason for one in judged)


def test_claims_by_design_and_not_comparable_need_no_records():
    found = [(claim, finding_on(claim, Evidence([]))) for claim in claims()]
    assert {finding.verdict for claim, finding in found if claim.because} == {CONFIRMED}
    assert {finding.verdict for claim, finding in found if claim.not_comparable} == {NOT_COMPARABLE}


def machine(engine: str, name: str, rows: int, train_s: float, **more: object) -> Record:
    facts = shipped()[name]
    return trained(
        f"{engine}-{name}-{rows}", study="machines", engine=engine, workload="mnist-mlp", mode="single",
        train_s=train_s, cores=facts["cores"] / 10, memory_gb=facts["memory_gb"] * 0.28, peak_memory_bytes=10**9,
        params={"machine": name, "train_rows": rows}, model={"sizes": [784, 32, 10]}, **more,
    )  # fmt: skip


def cluster(nodes: int, rows: int, train_s: float) -> Record:
    return trained(
        f"c-{nodes}-{rows}", study="clusters", engine="spark-mllib", workload="mnist-mlp", mode="sync", workers=nodes,
        cores=0.1, train_s=train_s, params={"train_rows": rows, "nodes": nodes},
    )  # fmt: skip


def as_published(tensorflow: float = 0.25, five: float = 680.0) -> list[Record]:
    """Return records like those of 002: TensorFlow takes a part of MLlib's time, and five nodes are enough."""
    out = []
    for name in ("c3.xlarge", "m4.xlarge", "r3.xlarge", "m4.2xlarge", "m4.4xlarge"):
        took = 4000 / shipped()[name]["cores"]
        lost = (
            {"status": "out-of-memory", "reason": "node-0 used 2.10 GiB of its 2.1 GiB"} if name == "c3.xlarge" else {}
        )
        out += [machine("spark-mllib", name, LARGE, took, **lost), machine("spark-mllib", name, SMALL, took / 3)]
        out += [machine("tensorflow", name, rows, took * tensorflow * rows / LARGE) for rows in (SMALL, LARGE)]
    small = [cluster(nodes, SMALL, 304.0) for nodes in (1, 3, 5, 17)]
    large = zip((1, 3, 5, 17), (1183.0, 1003.0, five, 680.0), strict=True)
    return [*out, *small, *(cluster(nodes, LARGE, took) for nodes, took in large)]


def test_records_like_those_of_002_confirm_its_claims():
    found = verdicts("machines-and-clusters", as_published())
    refuted = {claim for claim, verdict in found.items() if verdict == REFUTED}
    assert refuted == {"mllib-is-not-parallel"}, "five nodes were 1.7 times as fast"
    assert found["least-memory-runs-out"] == found["nothing-beyond-five"] == CONFIRMED
    assert found["newest-generation-fastest"] == NOT_COMPARABLE


def test_other_records_refute_them():
    found = verdicts("machines-and-clusters", as_published(tensorflow=2.0, five=1500.0))
    assert found["tensorflow-beats-mllib"] == found["large-data-speed-up"] == REFUTED
    assert found["nothing-beyond-five"] == REFUTED, "17 nodes are faster than five"


def test_charts_have_published_and_measured_values():
    found = {drawing.name: drawing for drawing in ratio_charts("machines-and-clusters", as_published())}
    assert set(found) == {"machines", "cores", "memory_gb", "clusters"}
    sides = {row["source"] for row in found["clusters"].rows}
    assert sides == {"published", "measured here"}
    values = {(row["x"], row["series"]): row["value"] for row in found["clusters"].rows if row["source"] == "published"}
    assert values[5, "spark-mllib, large data"] == pytest.approx(1183.191 / 679.665, abs=1e-3)


def parallel(mode: str, workers: int, **more: object) -> Record:
    base = {
        "study": "agreement", "engine": "tf-ps", "workload": "clicks-logreg", "mode": mode, "workers": workers,
        "metric": "error", "test_metrics": {"error": 0.21}, "targets": [0.22, 0.21],
        "time_to_target": {"0.22": 1.0 if mode == "sync" else 2.0, "0.21": None}, "peak_memory_bytes": 10**9,
        "training": {"cpu_share": 0.9, "runnable": 8.0, "memory_share": 0.1, "network_bytes_per_s": 140.0},
        "isolation": {"cpus": [0, 1]},
        "breakdowns": {"computing_s": {"worker-0": 1.0}, "waiting_s": {"worker-0": 0.5}},
    }  # fmt: skip
    fault = more.get("fault")
    return trained(f"{mode}-{workers}-{bool(fault)}", **{**base, "params": {"fault": fault}, **more})


def records_of_modes(straggler: float, network: float) -> list[Record]:
    busier = {"cpu_share": 0.7, "runnable": 10.0, "memory_share": 0.1, "network_bytes_per_s": network}
    slow = {"action": "slow"}
    return [
        parallel("sync", 4), parallel("async", 4, training=busier, peak_memory_bytes=8 * 10**8),
        parallel("sync", 2, train_s=2.0), parallel("async", 2, train_s=2.0),
        parallel("sync", 2, train_s=2.0 * straggler, fault=slow), parallel("async", 2, train_s=2.2, fault=slow),
    ]  # fmt: skip


def test_claims_about_sync_and_async():
    found = verdicts("sync-async", records_of_modes(straggler=3.0, network=182.0))
    lacking = {"spark-recovers", "tensorflow-restarts-at-the-checkpoint", "hours-of-training"}
    assert {claim for claim, verdict in found.items() if verdict != CONFIRMED} == lacking
    other = verdicts("sync-async", records_of_modes(straggler=1.0, network=100.0))
    assert other["sync-waits-for-stragglers"] == other["async-bound-by-network"] == REFUTED


def batch(mode: str, size: int, train_s: float, workload: str = "mnist-mlp") -> Record:
    return trained(
        f"{workload}-{mode}-{size}", study="batches", engine="tf-ps", workload=workload, mode=mode, workers=2,
        train_s=train_s, steps=10_000 // size, params={"batch_size": size * 2 if mode == "sync" else size},
    )  # fmt: skip


def test_claims_about_batches():
    times = {"sync": (128, 78, 73, 71), "async": (40, 23, 22, 22.5)}
    records = [
        batch(mode, size, took)
        for mode, row in times.items()
        for size, took in zip((1, 100, 1000, 10000), row, strict=True)
    ]
    found = verdicts("batch-size", records)
    assert {claim for claim, verdict in found.items() if verdict == REFUTED} == set()
    slower = [batch(mode, size, size) for mode in times for size in (1, 100, 1000, 10000)]
    assert verdicts("batch-size", slower)["batching-is-faster"] == REFUTED


def executor(engine: str, workers: int, epochs: int, train_s: float, accuracy: float, **more: object) -> Record:
    light = engine == "dask-sklearn"
    return trained(
        f"{engine}-{workers}-{epochs}-{more.get('cores')}", study="executors", engine=engine, workload="mnist-mlp",
        mode="local", workers=workers, train_s=train_s, test_accuracy=accuracy,
        **{"cores": 2 / workers, "params": {"epochs": epochs}, "dataset": {"train_rows": 100},
           "peak_memory_bytes": 10**9 if light else 3 * 10**9, "phases_s": {"cluster_start": 3.0 if light else 9.0},
           "breakdowns": {"computing_s": {"worker-0": train_s * 0.95}, "waiting_s": {"worker-0": 0.1},
                          }, "counts": {"gc_s": workers * train_s * (0.05 if workers == 1 else 0.02)}, **more},
    )  # fmt: skip


def test_claims_about_executors():
    records = []
    for engine, slow in (("spark-sklearn", 3.0), ("dask-sklearn", 1.0)):
        better = 0.01 if engine == "spark-sklearn" else 0.0
        for workers in (4, 2, 1):
            records.append(executor(engine, workers, 10, slow * 9, 0.913 + better))
            records.append(executor(engine, workers, 100, slow * (60 + 8 * workers), 0.954 + better))
        for epochs in (1000, 10000):
            records.append(executor(engine, 2, epochs, slow * 300, 0.967 + better, samples_seen=35_000))
        for cores, took in ((5, 10.0), (6, 14.0)):
            records.append(executor(engine, 1, 10, took, 0.91, cores=float(cores)))
    found = verdicts("executors", records)
    refuted = {claim for claim, verdict in found.items() if verdict == REFUTED}
    assert refuted == {"accuracy-grows-with-cores", "speed-against-accuracy"}
    crowded = [executor("dask-sklearn", 1, 10, 9.0, 0.9, cores=float(cores), oversubscribed=True) for cores in (5, 6)]
    assert verdicts("executors", crowded)["more-than-five-cores-hurts"] == NOT_COMPARABLE
    assert {drawing.name for drawing in ratio_charts("executors", records)} == {"times", "accuracy"}


def single(engine: str, train_s: float, accuracy: float, **params: object) -> Record:
    usual = {"train_rows": None, "learning_rate": 0.4, "epochs": 4, "max_iter": 10}
    mllib = engine == "spark-mllib"
    rows = params.get("train_rows") or LARGE
    return trained(
        f"{engine}-{sorted(params.items())}", study="parameters", engine=engine, workload="mnist-mlp", cpu_s=train_s,
        mode="sync" if mllib else "single", train_s=train_s, test_accuracy=accuracy,
        samples_per_s=5_000.0 if mllib else 60_000.0 if engine == "torch" else 40_000.0,
        dataset={"train_rows": rows}, params={**usual, **params},
    )  # fmt: skip


def test_claims_about_parameters():
    records = []
    for engine in ("tensorflow", "torch"):
        records += [
            single(engine, 8.0, 0.975), single(engine, 1.0, 0.93, train_rows=6000),
            single(engine, 8.0, 0.90, learning_rate=0.01),
            single(engine, 2.0, 0.97, epochs=1), single(engine, 16.0, 0.978, epochs=8),
        ]  # fmt: skip
    records += [
        single("spark-mllib", 60.0, 0.6),
        single("spark-mllib", 6.0, 0.55, train_rows=6000),
        single("spark-mllib", 220.0, 0.85, max_iter=40),
    ]
    found = verdicts("ml-parameters", records)
    assert {c for c, verdict in found.items() if verdict == REFUTED} == {
        "spark-excels-at-iteration",
        "one-machine-is-not-enough",
    }
    assert NOT_COMPARABLE not in found.values()


def test_a_missing_value_is_explained():
    gone = trained("x", engine="torch", status="crashed", reason="worker-1 is gone")
    with pytest.raises(
        Exception, match="the training time of torch is not known: it ended as crashed: worker-1 is gone"
    ):
        Evidence([gone]).train_s("torch")


def test_the_command_prints_verdicts_and_writes_a_page(tmp_path):
    store(tmp_path / "out" / "machines-and-clusters" / "all", *as_published())
    done = invoke("reproduce", "machines-and-clusters", "--only-judge", "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    found = {one["claim"]: one for one in json.loads(done.stdout)}
    assert found["tensorflow-beats-mllib"]["verdict"] == CONFIRMED
    page = (tmp_path / "out" / "machines-and-clusters" / "reproduction.md").read_text()
    assert "Which machine, and how many of them?" in page
    assert "machines-and-clusters-clusters.svg" in page
    assert (tmp_path / "out" / "machines-and-clusters" / "machines-and-clusters-clusters.svg").is_file()
    assert "| **refuted**" in page
    assert verdict_counts(evaluate("machines-and-clusters", as_published())) in page


def test_missing_and_damaged_records_are_reported(tmp_path):
    done = invoke("reproduce", "executors", "--only-judge", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no records here to judge by; run it without --only-judge to make them" in done.stderr
    assert not (tmp_path / "out").exists()
    folder = store(tmp_path / "out" / "machines-and-clusters" / "all", *as_published())
    (next(folder.glob("*/record.json"))).write_text("{")
    done = invoke("reproduce", "machines-and-clusters", "--only-judge", "--out", tmp_path / "out", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)
    assert done.stderr.splitlines()[-1].endswith("move it away and run the study again")


def test_the_verdict_is_printed_before_the_claims_place():
    file = io.StringIO()
    print_claims(evaluate("machines-and-clusters", as_published()), Console(file=file, width=80))
    heads = [line for line in file.getvalue().splitlines() if line.startswith("tensorflow-beats-mllib")]
    assert heads[0].startswith("tensorflow-beats-mllib: confirmed  (002, ")


def test_without_a_name_it_lists_reproductions_and_a_wrong_one_is_a_one_line_error():
    listed = invoke("reproduce")
    assert all(name in listed.stdout for name in REPRODUCTIONS)
    assert [one["reproduction"] for one in json.loads(invoke("reproduce", "--json").stdout)] == list(REPRODUCTIONS)
    wrong = invoke("reproduce", "executers")
    assert wrong.returncode == 2
    assert "did you mean `executors`?" in wrong.stderr
    assert wrong.stderr.count("\n") == 1
