"""`trainoff run` from the study file to the records, in real processes."""

import fcntl
import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars
import psutil
import pytest

from helpers.running import (
    HANGS_S,
    command,
    environment,
    give_permits,
    is_training,
    only_record,
    records,
    study,
    survivors,
    trainoff,
    wait_until,
)
from trainoff import data, engines
from trainoff.records import Record, Store
from trainoff.runner.runner import Runner, RunObserver, defer_interrupts, prepare
from trainoff.study import read

pytestmark = pytest.mark.cluster

QUICK = Path(__file__).parents[2] / "studies" / "quick.toml"


def test_a_run_writes_records_and_a_second_run_has_nothing_to_do(tmp_path):
    path = study(tmp_path, "numpy", "sklearn")
    out = tmp_path / "out"
    first = trainoff("run", path, "--out", out)
    assert first.returncode == 0, first.stdout + first.stderr
    assert re.search("(numpy|sklearn) reached", first.stdout), "whichever was faster"
    assert "All of them did the same arithmetic" in first.stdout

    done = records(out)
    assert sorted(record["engine"] for record in done) == ["numpy", "sklearn"]
    again = trainoff("run", path, "--out", out)
    assert again.returncode == 0
    assert "all done already" in again.stdout
    assert records(out) == done


def test_a_record_accounts_for_every_second_core_and_byte(tmp_path):
    trainoff("run", study(tmp_path, "numpy", more="batch_size = 10"), "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["status"] == "ok"
    assert record["schema_version"] == 1
    assert set(record) == set(Record.__dataclass_fields__)
    spent = sum(seconds or 0.0 for seconds in record["phases_s"].values()) + record["pause_s"]
    assert spent == pytest.approx(record["cold_s"], abs=1e-6)
    assert record["train_s"] == record["phases_s"]["train"]
    assert sum(record["cpu_s_by_role"].values()) == pytest.approx(record["cpu_s"], abs=0.02)
    assert record["samples_seen"] == 600
    assert record["peak_memory_bytes"] > 25e6
    assert record["equivalence"]["verdict"] == "exact"

    (folder,) = (path.parent for path in (tmp_path / "out").glob("*/*/record.json"))
    curve = polars.read_parquet(folder / "curve.parquet")
    assert curve["step"].to_list()[:2] == [1, 20]
    assert curve["samples_seen"].to_list()[-1] == 600
    assert curve["train_s"].is_sorted()
    assert curve["accuracy"].to_list()[-1] == pytest.approx(record["test_accuracy"])
    samples = polars.read_parquet(folder / "samples.parquet")
    assert {"driver", "machine"} <= set(samples["role"])
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["name"] for event in events if event["kind"] == "phase"][-1] == "teardown"


@pytest.mark.parametrize(
    "engines",
    [
        ("torch",),
        pytest.param(("numpy", "sklearn", "tensorflow", "jax"), marks=pytest.mark.soak),
        pytest.param(("spark-average",), marks=(pytest.mark.java, pytest.mark.soak)),
    ],
    ids=["alone", "others alone", "on Spark"],
)
def test_every_engine_reaches_its_targets_on_mnist(tmp_path, engines):
    """The study of `make demo` on the real data."""
    named = [argument for engine in engines for argument in ("--engine", engine)]
    done = trainoff("run", QUICK, *named, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {record["engine"]: record for record in records(tmp_path / "out")}
    assert set(found) == set(engines)
    for engine, record in found.items():
        assert record["time_to_target"]["0.97"] is not None
        assert record["time_to_target"]["0.98"] is not None
        assert record["test_accuracy"] >= 0.98
        assert record["equivalence"]["verdict"] == ("different by design" if engine == "spark-average" else "exact")
        assert record["model"]["sizes"] == [784, 800, 10]


def test_tiny_learning_rates_are_not_taken_for_wrong_results(tmp_path):
    path = study(tmp_path, "numpy", more="[grid]\nlearning_rate = [0.0001, 0.00001, 0.0000001]")
    assert trainoff("run", path, "--out", tmp_path / "out").returncode == 0
    found = [record["equivalence"] for record in records(tmp_path / "out")]
    assert len(found) == 3
    for equivalence in found:
        assert equivalence["verdict"] in ("exact", "within tolerance", None)
        if equivalence["verdict"] is None:
            assert equivalence["reason"] == "the steps are too small to be distinguished from float32 rounding"


@pytest.mark.namespace
def test_bytes_and_cpu_are_counted_by_role(tmp_path):
    path = study(tmp_path, "talker", more="workers = 2")
    assert trainoff("run", path, "--out", tmp_path / "out").returncode == 0
    record = only_record(tmp_path / "out")
    assert record["isolation"]["kind"] == "namespaces"
    assert 20_000_000 <= record["network_bytes"] <= 21_000_000
    assert record["cpu_s_by_role"]["worker-0"] > 0
    assert record["counts"] == {"bytes_sent": 20_000_000}
    assert record["phases_s"]["cluster_start"] > 0


FAILURES = {
    "crasher": ("crashed", "RuntimeError: the flux capacitor is empty"),
    "exiter": ("crashed", "the trial process ended with code 3 without saying why"),
    "liar": ("wrong-result", "but the final weights score"),
    "mute": ("wrong-result", "did not report its final weights"),
    "off-by-a-percent": ("wrong-result", "off the reference's path"),
    "unlucky": ("crashed", "worker-0: KeyError: 'the key'"),
    "gossip": ("crashed", "ValueError: cannot open [/data/x] of [rows, features]"),
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A run in which every engine but one fails, and its records by engine."""
    folder = tmp_path_factory.mktemp("failures")
    done = trainoff("run", study(folder, *FAILURES, "numpy"), "--out", folder / "out")
    return done, {record["engine"]: record for record in records(folder / "out")}


@pytest.mark.parametrize("engine", FAILURES)
def test_a_failure_has_a_record(failed, engine):
    done, by_engine = failed
    status, sentence = FAILURES[engine]
    assert sentence in done.stdout
    assert by_engine[engine]["status"] == status
    assert sentence in by_engine[engine]["reason"]


def test_lines_that_are_not_events_are_noted_in_the_record(failed):
    noted = failed[1]["gossip"]["notes"]["unreadable events"]
    assert noted == '4 on the pipe, the first: 5; {"a": 1}; {"kind": "progress"}'
    assert "unreadable events" not in failed[1]["numpy"]["notes"]


def test_failures_do_not_stop_the_run_and_set_the_exit_code(failed):
    done, by_engine = failed
    assert done.returncode == 1
    assert by_engine["numpy"]["status"] == "ok"


def test_a_crash_keeps_phase_traceback_and_log(failed):
    record = failed[1]["crasher"]
    assert record["phase"] == "train"
    assert "raise RuntimeError" in record["traceback"]
    assert "flux capacitor" in record["log_tail"]


def test_data_that_an_engine_refuses_make_the_trial_unsupported(tmp_path):
    table = "\n".join(["a,b,label", *(f"{i % 7},{i % 3},{i % 2}" for i in range(60))])
    (tmp_path / "two.csv").write_text(table)
    path = tmp_path / "two.toml"
    path.write_text('engines = ["sklearn"]\n[workload.two]\ndata = "two.csv"\nhidden = [4]\ntargets = [0.9]\n')
    done = trainoff("run", path, "--out", tmp_path / "out", TRAINOFF_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0
    record = only_record(tmp_path / "out")
    assert (record["status"], record["phase"]) == ("unsupported", "import")
    assert "two classes" in record["reason"]


@pytest.mark.parametrize(
    ("engine", "limit", "reason"),
    [
        ("sleeper", "stall_s = 2", "no progress for 2 s after step 1"),
        ("deaf", "stall_s = 2", "no progress for 2 s after step 1"),
        ("gated", "timeout_s = 3", "not finished after 3 s"),
    ],
)
def test_a_trial_over_its_limits_is_killed(tmp_path, permits, engine, limit, reason):
    path = study(tmp_path, engine, more=f"[limits]\n{limit}")
    assert trainoff("run", path, "--out", tmp_path / "out", PERMITS=str(permits)).returncode == 1
    record = only_record(tmp_path / "out")
    assert (record["status"], record["reason"]) == ("timeout", reason)
    if engine != "gated":  # which may not train yet
        assert record["phase"] == "train"
        assert (record["traceback"] is None) == (engine == "deaf"), "an engine that ignores SIGTERM leaves no traceback"
    assert survivors(tmp_path) == []


def test_a_role_over_its_memory_limit_is_out_of_memory_with_the_figure(tmp_path):
    path = study(tmp_path, "hog", more="[cluster]\nmemory_gb = 0.4")
    assert trainoff("run", path, "--out", tmp_path / "out").returncode == 1
    record = only_record(tmp_path / "out")
    assert record["status"] == "out-of-memory"
    reported = re.fullmatch(r"driver used (\d+\.\d+) GiB of its 0.4 GiB", record["reason"])
    assert reported
    assert 0.4 < float(reported[1]) < 8, "the limit was noticed too late"


@pytest.mark.namespace
def test_a_daemon_does_not_outlive_its_trial(tmp_path):
    assert trainoff("run", study(tmp_path, "leaver"), "--out", tmp_path / "out").returncode == 0
    assert only_record(tmp_path / "out")["orphans"] == 1


def test_a_diverged_trial_keeps_its_curve(tmp_path):
    path = study(tmp_path, "numpy", more="learning_rate = 1.0\nl2 = 1000\nbatch_size = 10")
    assert trainoff("run", path, "--out", tmp_path / "out").returncode == 1
    record = only_record(tmp_path / "out")
    assert record["status"] == "diverged"
    assert list((tmp_path / "out").glob("*/*/curve.parquet"))


def test_a_missing_dependency_is_unsupported_until_it_is_installed(tmp_path):
    path, screwdriver = study(tmp_path, "needy"), tmp_path / "screwdriver"
    first = trainoff("run", path, "--out", tmp_path / "out", NEEDY=str(screwdriver))
    assert first.returncode == 0
    assert "unsupported: needs a left-handed screwdriver; touch $NEEDY" in first.stdout
    screwdriver.touch()
    assert trainoff("run", path, "--out", tmp_path / "out", NEEDY=str(screwdriver)).returncode == 0
    record = only_record(tmp_path / "out")
    assert (record["status"], record["attempt"]) == ("ok", 2)


def test_a_broken_adapter_does_not_disturb_other_engines(tmp_path):
    path = study(tmp_path, "numpy", "broken", "unknown-version")
    done = trainoff("run", path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = {record["engine"]: record for record in records(tmp_path / "out")}
    assert found["numpy"]["status"] == found["unknown-version"]["status"] == "ok"
    assert found["unknown-version"]["engine_version"] == "unknown"
    assert found["broken"]["status"] == "unsupported"
    assert "cannot be loaded: AttributeError" in found["broken"]["reason"]
    assert "cannot be loaded" in trainoff("doctor").stdout


def test_the_cache_may_be_deleted_during_a_trial(tmp_path, permits):
    path, out, cache = study(tmp_path, "gated"), tmp_path / "out", tmp_path / "cache"
    argv, env = command("run", path, "--out", out), environment(TRAINOFF_CACHE="cache", PERMITS=str(permits))
    run = subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_until(lambda: is_training(out), run)
    shutil.rmtree(cache / "data")
    give_permits(permits)
    assert run.wait(HANGS_S) == 0
    assert only_record(out)["status"] == "ok"


SUSPENDED = """
import os, signal, sys
from trainoff.cli import main
from trainoff.runner.trial_process import TrialProcess

read_events = TrialProcess._read_events


def suspend_and_read_events(self, seconds):
    TrialProcess._read_events = read_events
    os.kill(os.getpid(), signal.SIGSTOP)
    read_events(self, seconds)


TrialProcess._read_events = suspend_and_read_events
sys.exit(main(sys.argv[1:]))
"""  # a runner that is suspended before it reads the first event, and before it first checks the time limit


def test_a_suspended_runner_does_not_make_the_trial_time_out(tmp_path):
    """It is suspended from before the trial's first event until after its end, and for longer than its time limit."""
    limit = 2
    path, out = study(tmp_path, "numpy", more=f"[limits]\ntimeout_s = {limit}"), tmp_path / "out"
    runner = tmp_path / "runner.py"
    runner.write_text(SUSPENDED)
    argv = [sys.executable, "-P", str(runner), "run", str(path), "--out", str(out)]
    run = subprocess.Popen(argv, env=environment(), stdout=subprocess.DEVNULL)
    wait_until(lambda: psutil.Process(run.pid).status() == psutil.STATUS_STOPPED, run)
    over = time.monotonic() + limit
    (pipe,) = out.glob("tiny/.staging/*/events")
    with pipe.open("rb+", buffering=0) as events:  # nothing reads the pipe: room for the events of a slow trial
        fcntl.fcntl(events, fcntl.F_SETPIPE_SZ, 2**20)
        wait_until(lambda: not survivors(tmp_path), run)
    time.sleep(max(0.0, over - time.monotonic()))  # until the limit is over
    run.send_signal(signal.SIGCONT)
    assert run.wait(HANGS_S) == 0
    assert only_record(out)["status"] == "ok"


def test_ctrl_c_while_a_trial_is_being_killed_stops_the_run(tmp_path):
    path, out = study(tmp_path, "deaf", more="[limits]\nstall_s = 2\n[grid]\nseed = [0, 10]"), tmp_path / "out"
    heard = tmp_path / "heard"
    argv, env = command("run", path, "--out", out), environment(HEARD=str(heard))
    run = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
    wait_until(heard.exists, run)  # now it has five seconds to end
    run.send_signal(signal.SIGINT)
    assert run.wait(HANGS_S) == 130
    assert only_record(out)["status"] == "timeout"


def test_a_refused_trial_has_the_engines_reason(tmp_path):
    done = trainoff("run", study(tmp_path, "picky"), "--out", tmp_path / "out")
    assert done.returncode == 0
    assert only_record(tmp_path / "out")["reason"] == "picky takes at most 8 rows a batch"


def test_a_failure_is_run_again_only_on_request_and_never_rewritten(tmp_path):
    path, out = study(tmp_path, "crasher"), tmp_path / "out"
    trainoff("run", path, "--out", out)
    assert trainoff("run", path, "--out", out).returncode == 1
    assert only_record(out)["attempt"] == 1
    trainoff("run", path, "--out", out, "--retry", "failed")
    assert only_record(out)["attempt"] == 2
    assert len(list(out.glob("tiny/crasher-*/record.json"))) == 2


def test_two_runs_on_one_folder_share_the_work(tmp_path, permits):
    path, out = study(tmp_path, "numpy", "gated", more="[grid]\nseed = [0, 10, 20]"), tmp_path / "out"
    argv, env = command("run", path, "--out", out), environment(PERMITS=str(permits))
    both = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    wait_until(lambda: len(list(out.glob("tiny/.staging/run-*/progress.json"))) == 2, both[0])
    give_permits(permits, 3)
    printed = [run.communicate(timeout=2 * HANGS_S)[0] for run in both]
    assert [run.returncode for run in both] == [0, 0], printed
    found = sorted((path.stat().st_mtime, path.parent.name) for path in out.glob("tiny/*/record.json"))
    assert len(found) == 6
    assert not [name for _, name in found if "." in name], "a trial was done twice"
    started = sorted(_span(out / "tiny" / name) for _, name in found)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(started)), "two at once"


def test_a_trial_that_another_run_left_unfinished_is_run_again(tmp_path):
    small = read(study(tmp_path, "numpy"), engines.facts())
    data.get("digits")
    store = Store(tmp_path / "out" / "tiny")
    (first,), (waiting,) = prepare(small, store), prepare(small, store)
    Runner(store, RunObserver()).run([first])
    (path,) = tmp_path.glob("out/tiny/*/record.json")
    path.write_text(path.read_text().replace('"unfinished": false', '"unfinished": true'))
    (record,) = Runner(store, RunObserver()).run([waiting]).records
    assert (record.attempt, record.unfinished) == (2, False)


def _span(folder):
    times = [json.loads(line)["t"] for line in (folder / "events.jsonl").read_text().splitlines()]
    return min(times), max(times)


def test_ctrl_c_keeps_finished_trials_and_the_same_command_continues(tmp_path, permits):
    path, out = study(tmp_path, "gated", more="[grid]\nseed = [0, 10, 20]"), tmp_path / "out"
    argv, env = command("run", path, "--out", out), environment(PERMITS=str(permits))
    run = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    give_permits(permits)
    wait_until(lambda: list(out.glob("tiny/gated-*/record.json")) and is_training(out), run)
    run.send_signal(signal.SIGINT)
    printed, _ = run.communicate(timeout=HANGS_S)
    assert run.returncode == 130
    assert "the same command goes on from here" in printed
    assert survivors(tmp_path) == []
    assert sorted(record["status"] for record in records(out)) == ["interrupted", "ok"]
    assert trainoff("run", path, "--out", out).returncode == 0
    assert [record["status"] for record in records(out)] == ["ok"] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_while_a_record_is_made_waits_for_it(number):
    done = []

    def make_a_record():
        with defer_interrupts():
            signal.raise_signal(number)
            done.append("the record")

    before = signal.signal(number, signal.default_int_handler)  # it may be ignored here
    try:
        with pytest.raises(KeyboardInterrupt):
            make_a_record()
    finally:
        signal.signal(number, before)
    assert done == ["the record"]


def test_sigterm_is_like_ctrl_c(tmp_path, permits):
    path, out = study(tmp_path, "gated"), tmp_path / "out"
    argv, env = command("run", path, "--out", out), environment(PERMITS=str(permits))
    run = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
    wait_until(lambda: is_training(out), run)
    run.terminate()
    assert run.wait(HANGS_S) == 130
    record = only_record(out)
    assert (record["status"], record["reason"], record["unfinished"]) == ("interrupted", "stopped by the user", True)


def test_run_prints_records_as_json(tmp_path):
    done = trainoff("run", study(tmp_path, "numpy"), "--out", tmp_path / "out", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == records(tmp_path / "out")
    assert "1 trial" in done.stderr


def test_modules_in_the_working_directory_are_not_imported(tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong random')")
    done = trainoff("run", study(tmp_path, "numpy"), "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert only_record(tmp_path / "out")["status"] == "ok"


def test_without_namespaces_a_trial_works_and_the_record_says_so(tmp_path):
    done = trainoff("run", study(tmp_path, "leaver"), "--out", tmp_path / "out", TRAINOFF_ISOLATION="process-group")
    assert done.returncode == 0, done.stderr
    record = only_record(tmp_path / "out")
    assert record["isolation"]["kind"] == "process-group"
    assert record["network_bytes"] is None
    assert record["orphans"] == 1
