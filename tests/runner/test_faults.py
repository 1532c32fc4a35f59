"""Faults without a training: what a study may ask for, when it is due, what the hand does, and what the record says."""

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from helpers.running import HANGS_S
from helpers.studies import error_of, study
from helpers.training import make_trial
from trainoff import engines
from trainoff.engines import Engine
from trainoff.runner.events import TrialState, make_event
from trainoff.runner.faults import (
    FaultInjector,
    FaultSchedule,
    FaultTargets,
    ProcessTargets,
    fault_impact,
    fault_of,
    send_all,
)
from trainoff.runner.status import check_preconditions
from trainoff.study import read

STUDIES = Path(__file__).parents[2] / "studies"
TWO = 'workload = "digits-mlp"\nengines = ["torch"]\n'
PAUSE = {"action": "pause", "node": 1, "at": 0.3, "for_s": 10.0}
KILL = {"action": "kill-process", "node": 1, "at": 0.3}


def faults(folder, text, **asked):
    """The fault of every trial, in the order of the file."""
    made = study(folder, TWO + text, **asked)
    return [values.get("fault") for _, values in made.settings()]


def test_a_fault_says_what_when_and_to_whom(tmp_path):
    assert faults(tmp_path, "[params]\nworkers = 2\n[fault]\naction = 'kill-process'\n") == [
        {"action": "kill-process", "node": -1, "at": 0.3}
    ]
    cut = "[fault]\naction = 'cut'\nnode = 1\nat = '12.50 s'\nfor_s = 4\n[params]\nworkers = 2\n"
    assert faults(tmp_path, cut) == [{"action": "cut", "node": 1, "at": "12.5 s", "for_s": 4.0}]
    assert faults(tmp_path, cut.replace("12.50 s", "1000000 s"))[0]["at"] == "1000000 s"
    assert faults(tmp_path, cut.replace("12.50 s", "0.00001 s"))[0]["at"] == "0.00001 s"


def test_no_fault_is_a_fault_that_can_be_swept_and_the_same_trial_as_without(tmp_path):
    swept = "[params]\nworkers = 2\n[grid]\nfault = [{action = 'none'}, {action = 'pause', at = 'step 7'}]\n"
    assert faults(tmp_path, swept) == [None, {"action": "pause", "node": -1, "at": "step 7", "for_s": 10.0}]
    ids = {trial.id() for trial in study(tmp_path, TWO + swept).trials()}
    (without,) = study(tmp_path, TWO + "[params]\nworkers = 2\n").trials()
    assert len(ids) == 2
    assert without.id() in ids
    assert faults(tmp_path, swept, overrides=["fault={action = 'none'}"]) == [None]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("{}", "`fault` has no `action`; expected one of kill-process, kill-node, pause, slow"),
        ("{action = 'kil-process'}", "did you mean `kill-process`?"),
        ("{action = 'pause', worker = 1}", "`worker` is not a key of `fault`"),
        (
            "{action = 'kill-node', for_s = 3}",
            "`for_s` means nothing for the fault `kill-node`, which has `node`, `at`",
        ),
        (
            "{action = 'none', at = 0.5}",
            "`at` means nothing for the fault `none`, which has nothing else; leave it out",
        ),
        ("{action = 'pause', at = 1}", "`at` is 1; expected a share of the training from 0 to below 1"),
        ("{action = 'pause', at = 'step 0.5'}", '`at` is "step 0.5"; expected a share'),
        ("{action = 'pause', at = true}", "`at` is true; expected a share"),
        ("{action = 'slow', share = 0}", "`share` is 0; expected a number from 0.01 to 1"),
        ("{action = 'limit', bandwidth_mbit = 0}", "`bandwidth_mbit` is 0; expected a number above 0"),
        ("'slow'", '`fault` is "slow"; expected a table with `action`'),
    ],
)
def test_what_a_fault_cannot_be_is_answered_in_a_sentence(tmp_path, fault, expected):
    said = error_of(tmp_path, f"{TWO}fault = {fault}\n")
    assert said.startswith("my.toml, line 3: ")
    assert expected in said


def test_there_is_one_place_for_a_fault(tmp_path):
    twice = TWO + "[fault]\naction = 'slow'\n[params]\nfault = {action = 'slow'}\n"
    assert "there is a [fault] and a `fault` in [params]; keep one" in error_of(tmp_path, twice)


def test_the_study_that_ships_asks_every_distributed_engine_about_every_fault(tmp_path):
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
    faults = {None, "kill-process", "kill-node", "pause", "slow", "cut"}
    assert all(len(own) == 6 and set(own) == faults for own in asked.values()), asked


class Patient(Engine):
    """Refuses nothing."""

    name = "patient"


@pytest.mark.parametrize(
    ("fault", "cluster", "reason"),
    [
        ({"action": "cut"}, "processes", 'needs nodes with their own network and memory; use kind = "lab"'),
        ({"action": "fill"}, "attach", "only into nodes that trainoff starts on this machine"),
        ({"action": "pause", "node": 1}, "processes", "the fault is for node 1, but the nodes are 0 to 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_here_is_unsupported(fault, cluster, reason):
    trial = replace(make_trial("patient", fault={"node": -1, "at": 0.3, **fault}), cluster=cluster)
    found = check_preconditions(trial, Patient())
    assert found.status == "unsupported"
    assert reason in found.reason
    assert check_preconditions(make_trial("patient", fault=PAUSE | {"node": -1}), Patient()) is None


def test_the_last_node_is_the_one_that_is_meant():
    trial = make_trial("patient", fault={"action": "pause", "node": -1, "at": 0.3, "for_s": 10.0})
    assert fault_of(trial)["node"] == 0
    assert fault_of(make_trial("patient")) is None


def is_training(seen=0, step=0, paused=0.0, phase="train"):
    state = TrialState(100.0, phase=phase, expected=1000, samples_seen=seen, step=step, paused_s=paused)
    state.train_start = 110.0
    return state


@pytest.mark.parametrize(
    ("at", "state", "wait"),
    [
        (0.3, is_training(seen=299), math.inf),
        (0.3, is_training(seen=300), 0.0),
        (0, is_training(), 0.0),
        (0, is_training(phase="ship"), math.inf),
        ("step 7", is_training(step=6), math.inf),
        ("step 7", is_training(step=8), 0.0),
        ("10 s", is_training(paused=2.0), 7.0),
        ("3 s", is_training(paused=2.0), 0.0),
    ],
)
def test_a_fault_is_due_at_its_moment_of_the_training(at, state, wait):
    assert FaultSchedule({"at": at}).wait(state, now=115.0) == wait


def test_each_word_is_said_once_and_a_fault_is_over_with_the_training():
    cue = FaultSchedule(PAUSE)
    said = [list(cue.commands(state, 115.0)) for state in (
        is_training(), is_training(seen=300), is_training(seen=600), is_training(seen=900, phase="compile"),
        is_training(seen=1000, phase="test"), is_training(seen=1000, phase="teardown"),
    )]  # fmt: skip
    assert said == [[], ["fault"], [], [], ["heal"], []]
    assert list(FaultSchedule(None).commands(is_training(seen=1000), 115.0)) == []
    assert list(FaultSchedule(PAUSE).commands(is_training(seen=200, phase="teardown"), 115.0)) == [], (
        "it never came to it"
    )


def until(condition):
    """Wait for what happens; fails if it does not."""
    deadline = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


class Toy(FaultTargets):
    """Nodes of one process, and a list of what was done to them."""

    def __init__(self, nodes=2):
        self.done, self._nodes = [], nodes

    def pids(self, node):
        return [10**8 + node] if node < self._nodes else []  # there is no such process

    def trainers(self, node):
        self.done.append("looked for a worker")
        return self.pids(node)

    def cut(self, node):
        self.done.append(f"cut {node}")

    def heal(self, node):
        self.done.append(f"healed {node}")

    def fill(self, node):
        raise OSError("no room")


def hand(fault, reach):
    said = []
    made = FaultInjector({"node": 1, "for_s": None, **fault}, reach, lambda kind, **fields: said.append((kind, fields)))
    return made, said


def test_the_hand_does_a_fault_and_heals_it_once():
    reach = Toy()
    made, said = hand({"action": "cut", "for_s": 0.05}, reach)
    made.inject()
    until(lambda: len(said) == 2)
    made.heal()
    assert reach.done == ["cut 1", "healed 1"]
    assert [kind for kind, _ in said] == ["fault", "healed"]
    assert said[0][1].pop("t") <= time.monotonic()
    assert said[0][1] == {"action": "cut", "node": 1, "processes": 1, "why": None}


def test_what_does_not_last_is_not_healed():
    reach = Toy()
    made, said = hand({"action": "kill-process"}, reach)
    made.inject()
    made.heal()
    assert reach.done == ["looked for a worker"]
    assert [kind for kind, _ in said] == ["fault"]


def test_a_hand_that_finds_nobody_or_fails_says_so_and_goes_on():
    made, said = hand({"action": "cut"}, Toy(nodes=1))
    made.inject()
    made.heal()
    assert [kind for kind, _ in said] == ["fault"]
    assert (said[0][1]["processes"], said[0][1]["why"]) == (0, "LookupError: there is no such process")
    made, said = hand({"action": "fill"}, Toy())
    made.inject()
    assert (said[0][1]["processes"], said[0][1]["why"]) == (0, "OSError: no room")


FAMILY = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100_000)  # the " + "trainer"])
print(child.pid, flush=True)
child.wait()"""


@pytest.fixture
def family():
    """A process with the role worker-7, and its child; yields their numbers."""
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


def test_a_node_of_processes_is_known_by_its_role(family):
    parent, child = family
    assert ProcessTargets(None).pids(7) == [parent, child]
    assert ProcessTargets(None).trainers(7) == [parent, child]
    assert ProcessTargets("# the trainer").trainers(7) == [child], "the one that trains, where there are others"
    assert ProcessTargets("no such program").trainers(7) == []
    assert ProcessTargets(None).pids(8) == []


def test_all_processes_of_a_node_stand_still_and_go_on(family):
    reach = ProcessTargets(None)
    reach.pause(7)
    until(lambda: all(stopped(family)))
    reach.resume(7)
    until(lambda: not any(stopped(family)))


def test_what_is_started_while_a_node_is_stopped_stops_too():
    early, late = (subprocess.Popen(["sleep", "100000"]) for _ in range(2))
    seen = iter([[early.pid], [early.pid, late.pid], [early.pid, late.pid]])
    try:
        assert send_all(lambda: next(seen), signal.SIGSTOP) == sorted([early.pid, late.pid])
        until(lambda: all(stopped([early.pid, late.pid])))
    finally:
        for each in (early, late):
            each.kill()
            each.wait()


def test_a_slow_node_stands_still_now_and_then_until_it_is_healed(family):
    reach = ProcessTargets(None)
    reach.slow(7, 0.1)
    until(lambda: all(stopped(family)))
    reach.restore_speed(7)
    until(lambda: not any(stopped(family)))


def told(*events):
    """The state of a training that began at 100 s and was hit at 110 s, after 500 samples."""
    state = TrialState(90.0)
    begin = [{"t": 100.0, "kind": "phase", "name": "train"}]
    hit = [beat(109.0, 500), {"t": 110.0, "kind": "fault", "action": "pause", "node": 1, "processes": 1, "why": None}]
    for event in [*begin, *hit, *events]:
        state.apply(make_event(event))
    return state


def beat(t, seen):
    return {"t": t, "kind": "progress", "step": seen // 10, "samples_seen": seen, "loss": None}


def lost(t, samples=0, ago_s=0.0):
    return {"t": t, "kind": "lost", "role": "worker-1", "samples": samples, "ago_s": ago_s}


OVER = {"t": 130.0, "kind": "phase", "name": "test"}


def test_a_loss_that_was_made_good():
    state = told(beat(110.2, 520), lost(111.0, 120), beat(118.0, 410), beat(121.0, 530), beat(129.5, 900), OVER)
    assert fault_impact(KILL, state, failed=False) == {
        **KILL,
        "at_s": 10.0,
        "step": 50,
        "processes": 1,
        "healed_s": None,
        "detected_s": 1.0,
        "recovered_s": 11.0,  # at 118 s it made steps again, at 121 s it was where it had been
        "longest_gap_s": 8.5,
        "samples_redone": 120,
        "why": None,
        "state": "recovered",
    }


def test_a_loss_may_be_told_long_after_it_was_noticed():
    state = told(beat(115.0, 600), beat(116.0, 700), OVER, lost(130.0, 50, ago_s=17.0))
    found = fault_impact(KILL, state, failed=False)
    assert (found["detected_s"], found["recovered_s"], found["samples_redone"]) == (3.0, 5.0, 50)


def test_a_fault_that_nobody_noticed_did_no_harm_but_took_time():
    healed = {"t": 120.0, "kind": "healed", "action": "pause", "node": 1}
    signs_of_life = [beat(t, 500) for t in (112.0, 115.0)]
    found = fault_impact(PAUSE, told(*signs_of_life, healed, beat(120.1, 510), beat(129.0, 900), OVER), failed=False)
    assert (found["state"], found["detected_s"], found["recovered_s"]) == ("unharmed", None, None)
    assert (found["healed_s"], found["longest_gap_s"], found["samples_redone"]) == (10.0, 10.1, 0)


@pytest.mark.parametrize(("phase", "detected_s"), [("train", 1.5), ("test", 3.0)])
def test_whoever_gives_up_has_noticed(phase, detected_s):
    error = {"t": 113.0, "kind": "error", "phase": phase, "status": "crashed", "reason": "gone"}
    error |= {"traceback": "", "unfinished": False}
    found = fault_impact(KILL, told({"t": 111.5, "kind": "phase", "name": "teardown"}, error), failed=True)
    assert (found["state"], found["detected_s"], found["recovered_s"]) == ("failed", detected_s, None)


def test_what_was_lost_before_is_not_the_faults():
    state = told()
    state.lost.insert(0, make_event(lost(105.0, 40)))
    found = fault_impact(KILL, state, failed=False)
    assert (found["state"], found["samples_redone"]) == ("unharmed", 0)


@pytest.mark.parametrize(
    "event", [None, {"t": 110.0, "kind": "fault", "action": "pause", "node": 1, "processes": 0, "why": "nobody there"}]
)
def test_a_fault_that_was_not_done_is_not_told_as_one(event):
    state = TrialState(90.0)
    if event:
        state.apply(make_event(event))
    found = fault_impact(PAUSE, state, failed=False)
    assert found["state"] == "not done"
    assert found["at_s"] is found["detected_s"] is found["longest_gap_s"] is None
    assert found["why"] == (event and "nobody there")


def test_a_fault_and_its_healing_are_not_held_against_the_trials_patience():
    state = told({"t": 125.0, "kind": "healed", "action": "pause", "node": 1})
    assert state.last_progress == 125.0
