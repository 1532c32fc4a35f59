"""Faults without a training: keys of studies, the schedule, the injector, and the impact in the record."""

import math
import os
import queue
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from msgspec import convert

from helpers.running import HANGS_S, wait_for
from helpers.studies import error_of, study
from helpers.training import make_trial
from trainoff import engines
from trainoff.engines import Engine
from trainoff.runner.events import AnyEvent, TrialState
from trainoff.runner.faults import FaultInjector, FaultSchedule, FaultTargets, fault_impact, fault_of, send_all
from trainoff.runner.status import check_preconditions
from trainoff.study import read

STUDIES = Path(__file__).parents[2] / "studies"
TWO = 'workload = "digits-mlp"\nengines = ["torch"]\n'
PAUSE = {"action": "pause", "node": 1, "at": 0.3, "for_s": 10.0}
KILL = {"action": "kill-process", "node": 1, "at": 0.3}


def faults_of(folder, text, **asked):
    """Return the fault of every trial, in the order of the file."""
    found = study(folder, TWO + text, **asked)
    return [values.get("fault") for _, values in found.settings()]


def test_a_fault_has_an_action_a_node_and_a_time(tmp_path):
    assert faults_of(tmp_path, "[params]\nworkers = 2\n[fault]\naction = 'kill-process'\n") == [
        {"action": "kill-process", "node": -1, "at": 0.3}
    ]
    cut = "[fault]\naction = 'cut'\nnode = 1\nat = '12.50 s'\nfor_s = 4\n[params]\nworkers = 2\n"
    assert faults_of(tmp_path, cut) == [{"action": "cut", "node": 1, "at": "12.5 s", "for_s": 4.0}]
    assert faults_of(tmp_path, cut.replace("12.50 s", "1000000 s"))[0]["at"] == "1000000 s"
    assert faults_of(tmp_path, cut.replace("12.50 s", "0.00001 s"))[0]["at"] == "0.00001 s"


def test_action_none_is_the_same_trial_as_without_a_fault(tmp_path):
    swept = "[params]\nworkers = 2\n[grid]\nfault = [{action = 'none'}, {action = 'pause', at = 'step 7'}]\n"
    assert faults_of(tmp_path, swept) == [None, {"action": "pause", "node": -1, "at": "step 7", "for_s": 10.0}]
    ids = {trial.id() for trial in study(tmp_path, TWO + swept).trials()}
    (without,) = study(tmp_path, TWO + "[params]\nworkers = 2\n").trials()
    assert len(ids) == 2
    assert without.id() in ids
    assert faults_of(tmp_path, swept, overrides=["fault={action = 'none'}"]) == [None]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("{}", "`fault` has no `action`; expected one of kill-process, kill-node, pause, slow"),
        ("{action = 'kil-process'}", "did you mean `kill-process`?"),
        ("{action = 'pause', worker = 1}", "`worker` is not a key of `fault`"),
        ("{action = 'kill-node', for_s = 3}", "`for_s` is not a key of the fault `kill-node`, which has `node`, `at`"),
        ("{action = 'none', at = 0.5}", "`at` is not a key of the fault `none`, which has nothing else; leave it out"),
        ("{action = 'pause', at = 1}", "`at` is 1; expected a share of the training from 0 to below 1"),
        ("{action = 'pause', at = 'step 0.5'}", '`at` is "step 0.5"; expected a share'),
        ("{action = 'pause', at = true}", "`at` is true; expected a share"),
        ("{action = 'slow', share = 0}", "`share` is 0; expected a number from 0.01 to 1"),
        ("{action = 'limit', bandwidth_mbit = 0}", "`bandwidth_mbit` is 0; expected a number above 0"),
        ("'slow'", '`fault` is "slow"; expected a table with `action`'),
    ],
)
def test_a_mistake_in_a_fault_is_a_one_line_error(tmp_path, fault, expected):
    error = error_of(tmp_path, f"{TWO}fault = {fault}\n")
    assert error.startswith("my.toml, line 3: ")
    assert expected in error


def test_a_fault_may_be_given_in_one_place_only(tmp_path):
    twice = TWO + "[fault]\naction = 'slow'\n[params]\nfault = {action = 'slow'}\n"
    assert "there is a [fault] and a `fault` in [params]; keep one" in error_of(tmp_path, twice)


def test_the_shipped_study_has_every_fault_for_every_distributed_engine(tmp_path):
    known = engines.facts()
    shipped = {
        name
        for name, engine in known.engines.items()
        if engine.distributed and "trainoff" in type(engines.get(name)).__module__
    }
    asked = {}
    for trial in read(STUDIES / "faults.toml", known).trials():
        asked.setdefault(trial.engine, []).append(trial.params.get("fault", {}).get("action"))
    assert asked.keys() == shipped
    actions = {None, "kill-process", "kill-node", "pause", "slow", "cut"}
    assert all(len(own) == 6 and set(own) == actions for own in asked.values()), asked


class AcceptingEngine(Engine):
    """An engine that refuses nothing."""

    name = "accepting"


@pytest.mark.parametrize(
    ("fault", "cluster", "reason"),
    [
        ({"action": "cut"}, "processes", 'needs nodes with their own network and memory; use kind = "lab"'),
        ({"action": "fill"}, "attach", "only into nodes that trainoff starts on this machine"),
        ({"action": "pause", "node": 1}, "processes", "the fault is for node 1, but the nodes are 0 to 0"),
    ],
)  # fmt: skip
def test_a_fault_that_the_cluster_cannot_have_is_unsupported(fault, cluster, reason):
    trial = replace(make_trial("accepting", fault={"node": -1, "at": 0.3, **fault}), cluster=cluster)
    found = check_preconditions(trial, AcceptingEngine())
    assert found.status == "unsupported"
    assert reason in found.reason
    assert check_preconditions(make_trial("accepting", fault=PAUSE | {"node": -1}), AcceptingEngine()) is None


def test_node_minus_one_is_the_last():
    trial = make_trial("accepting", fault={"action": "pause", "node": -1, "at": 0.3, "for_s": 10.0})
    assert fault_of(trial)["node"] == 0
    assert fault_of(make_trial("accepting")) is None


def training_state(seen=0, step=0, paused=0.0, phase="train"):
    state = TrialState(100.0, phase=phase, expected=1000, samples_seen=seen, step=step, paused_s=paused)
    state.train_start = 110.0
    return state


@pytest.mark.parametrize(
    ("at", "state", "wait"),
    [
        (0.3, training_state(seen=299), math.inf),
        (0.3, training_state(seen=300), 0.0),
        (0, training_state(), 0.0),
        (0, training_state(phase="ship"), math.inf),
        ("step 7", training_state(step=6), math.inf),
        ("step 7", training_state(step=8), 0.0),
        ("10 s", training_state(paused=2.0), 7.0),
        ("3 s", training_state(paused=2.0), 0.0),
    ],
)
def test_when_a_fault_is_due(at, state, wait):
    assert FaultSchedule({"at": at}).wait(state, now=115.0) == wait


def test_each_command_is_given_once_and_a_fault_ends_with_the_training():
    schedule = FaultSchedule(PAUSE)
    commands = [list(schedule.commands(state, 115.0)) for state in (
        training_state(), training_state(seen=300), training_state(seen=600), training_state(seen=900, phase="compile"),
        training_state(seen=1000, phase="test"), training_state(seen=1000, phase="teardown"),
    )]  # fmt: skip
    assert commands == [[], ["fault"], [], [], ["heal"], []]
    assert list(FaultSchedule(None).commands(training_state(seen=1000), 115.0)) == []
    assert list(FaultSchedule(PAUSE).commands(training_state(seen=200, phase="teardown"), 115.0)) == [], (
        "the training never got so far"
    )


class FakeTargets(FaultTargets):
    """Nodes of one process each, and a list of what was done to them."""

    def __init__(self, nodes=2):
        self.done, self._nodes = [], nodes

    def pids(self, node):
        return [10**8 + node] if node < self._nodes else []  # there is no such process

    def trainers(self, node):
        self.done.append("searched for a worker")
        return self.pids(node)

    def cut(self, node):
        self.done.append(f"cut {node}")

    def heal(self, node):
        self.done.append(f"healed {node}")

    def fill(self, node):
        raise OSError("no room")


def injector_of(fault, targets):
    reports = queue.Queue()
    injector = FaultInjector(
        {"node": 1, "for_s": None, **fault}, targets, lambda kind, **fields: reports.put((kind, fields))
    )
    return injector, reports


def test_the_injector_injects_a_fault_and_heals_it_once():
    targets = FakeTargets()
    injector, reports = injector_of({"action": "cut", "for_s": 0.05}, targets)
    injector.inject()
    kind, fields = reports.get_nowait()
    assert kind == "fault"
    assert fields.pop("t") <= time.monotonic()
    assert fields == {"action": "cut", "node": 1, "processes": 1, "why": None}
    assert reports.get(timeout=HANGS_S)[0] == "healed"
    injector.heal()
    assert targets.done == ["cut 1", "healed 1"]
    assert reports.empty()


def test_a_kill_is_not_healed():
    targets = FakeTargets()
    injector, reports = injector_of({"action": "kill-process"}, targets)
    injector.inject()
    injector.heal()
    assert targets.done == ["searched for a worker"]
    assert reports.get_nowait()[0] == "fault"
    assert reports.empty()


def test_a_fault_without_a_target_or_with_an_error_is_reported():
    injector, reports = injector_of({"action": "cut"}, FakeTargets(nodes=1))
    injector.inject()
    injector.heal()
    kind, fields = reports.get_nowait()
    assert (kind, fields["processes"], fields["why"]) == ("fault", 0, "LookupError: there is no such process")
    assert reports.empty()
    injector, reports = injector_of({"action": "fill"}, FakeTargets())
    injector.inject()
    kind, fields = reports.get_nowait()
    assert (kind, fields["processes"], fields["why"]) == ("fault", 0, "OSError: no room")


FAMILY = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100_000)  # the " + "trainer"])
print(child.pid, flush=True)
child.wait()"""


@pytest.fixture
def family():
    """A process with the role worker-7 and its child; yields their pids."""
    env = {**os.environ, "TRAINOFF_ROLE": "worker-7"}
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], env=env, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    yield parent.pid, child
    for pid in (child, parent.pid):
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    parent.wait()
    parent.stdout.close()


def stopped(family):
    return [psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in family]


def test_a_nodes_processes_are_found_by_their_role(family):
    parent, child = family
    assert FaultTargets(None).pids(7) == [parent, child]
    assert FaultTargets(None).trainers(7) == [parent, child]
    assert FaultTargets("# the trainer").trainers(7) == [child], "of several processes the one that trains"
    assert FaultTargets("no such program").trainers(7) == []
    assert FaultTargets(None).pids(8) == []


def test_all_processes_of_a_node_are_paused_and_resumed(family):
    targets = FaultTargets(None)
    targets.pause(7)
    wait_for(lambda: all(stopped(family)))
    targets.resume(7)
    wait_for(lambda: not any(stopped(family)))


def test_processes_started_during_a_pause_are_paused_too():
    early, late = (subprocess.Popen(["sleep", "100000"]) for _ in range(2))
    seen = iter([[early.pid], [early.pid, late.pid], [early.pid, late.pid]])
    try:
        assert send_all(lambda: next(seen), signal.SIGSTOP) == sorted([early.pid, late.pid])
        wait_for(lambda: all(stopped([early.pid, late.pid])))
    finally:
        for each in (early, late):
            each.kill()
            each.wait()


def test_a_slow_node_is_paused_at_intervals_until_it_is_healed(family):
    targets = FaultTargets(None)
    targets.slow(7, 0.1)
    wait_for(lambda: all(stopped(family)))
    targets.restore_speed(7)
    wait_for(lambda: not any(stopped(family)))


def state_after(*events):
    """Return the state of a training that began at 100 s and had a fault at 110 s, after 500 samples."""
    state = TrialState(90.0)
    start = [{"t": 100.0, "kind": "phase", "name": "train"}]
    fault = [
        progress(109.0, 500),
        {"t": 110.0, "kind": "fault", "action": "pause", "node": 1, "processes": 1, "why": None},
    ]
    for event in [*start, *fault, *events]:
        state.apply(convert(event, AnyEvent))
    return state


def progress(t, seen):
    return {"t": t, "kind": "progress", "step": seen // 10, "samples_seen": seen, "loss": None}


def lost(t, samples=0, ago_s=0.0):
    return {"t": t, "kind": "lost", "role": "worker-1", "samples": samples, "ago_s": ago_s}


OVER = {"t": 130.0, "kind": "phase", "name": "test"}


def test_the_impact_of_a_lost_worker_that_was_replaced():
    state = state_after(
        progress(110.2, 520), lost(111.0, 120), progress(118.0, 410), progress(121.0, 530), progress(129.5, 900), OVER
    )
    assert fault_impact(KILL, state, failed=False) == {
        **KILL,
        "at_s": 10.0,
        "step": 50,
        "processes": 1,
        "healed_s": None,
        "detected_s": 1.0,
        "recovered_s": 11.0,  # at 118 s it made steps again, at 121 s it had caught up
        "longest_gap_s": 8.5,
        "samples_redone": 120,
        "why": None,
        "state": "recovered",
    }


def test_a_loss_may_be_reported_long_after_it_was_detected():
    state = state_after(progress(115.0, 600), progress(116.0, 700), OVER, lost(130.0, 50, ago_s=17.0))
    found = fault_impact(KILL, state, failed=False)
    assert (found["detected_s"], found["recovered_s"], found["samples_redone"]) == (3.0, 5.0, 50)


def test_a_fault_that_was_not_detected_only_took_time():
    healed = {"t": 120.0, "kind": "healed", "action": "pause", "node": 1}
    reports = [progress(t, 500) for t in (112.0, 115.0)]
    found = fault_impact(
        PAUSE, state_after(*reports, healed, progress(120.1, 510), progress(129.0, 900), OVER), failed=False
    )
    assert (found["state"], found["detected_s"], found["recovered_s"]) == ("unharmed", None, None)
    assert (found["healed_s"], found["longest_gap_s"], found["samples_redone"]) == (10.0, 10.1, 0)


@pytest.mark.parametrize(("phase", "detected_s"), [("train", 1.5), ("test", 3.0)])
def test_a_failed_training_has_detected_the_fault(phase, detected_s):
    error = {"t": 113.0, "kind": "error", "phase": phase, "status": "crashed", "reason": "gone"}
    error |= {"traceback": "", "unfinished": False}
    found = fault_impact(KILL, state_after({"t": 111.5, "kind": "phase", "name": "teardown"}, error), failed=True)
    assert (found["state"], found["detected_s"], found["recovered_s"]) == ("failed", detected_s, None)


def test_losses_before_the_fault_are_not_its_impact():
    state = state_after()
    state.lost.insert(0, convert(lost(105.0, 40), AnyEvent))
    found = fault_impact(KILL, state, failed=False)
    assert (found["state"], found["samples_redone"]) == ("unharmed", 0)


@pytest.mark.parametrize(
    "event",
    [None, {"t": 110.0, "kind": "fault", "action": "pause", "node": 1, "processes": 0, "why": "no process there"}],
)
def test_a_fault_that_was_not_injected_has_no_impact(event):
    state = TrialState(90.0)
    if event:
        state.apply(convert(event, AnyEvent))
    found = fault_impact(PAUSE, state, failed=False)
    assert found["state"] == "not done"
    assert found["at_s"] is found["detected_s"] is found["longest_gap_s"] is None
    assert found["why"] == (event and "no process there")


def test_a_fault_and_its_end_count_as_progress():
    state = state_after({"t": 125.0, "kind": "healed", "action": "pause", "node": 1})
    assert state.last_progress == 125.0
