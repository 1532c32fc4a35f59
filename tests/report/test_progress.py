"""The progress file of a run: at most one write a second, complete, removed at the end, and no reason to fail."""

import errno
import json
import shutil
from types import SimpleNamespace

import pytest

from helpers.running import study
from trainoff import engines, run
from trainoff.records import Store
from trainoff.report import progress
from trainoff.report.progress import ProgressFile
from trainoff.runner.estimate import Clock, Estimator
from trainoff.runner.events import TrialState
from trainoff.runner.runner import prepare
from trainoff.study import read


@pytest.fixture
def run_of_two(tmp_path):
    """A run of two trials, before the first of them."""
    store = Store(tmp_path / "out" / "tiny")
    store.prepare()
    path = study(tmp_path, "numpy", more="[grid]\nseed = [0, 10]")
    tasks = prepare(read(path, engines.facts()), store)
    return store, tasks, Clock(tasks, Estimator([]))


def read_progress(store: Store) -> dict:
    (path,) = store.folder.glob(".staging/run-*/progress.json")
    return json.loads(path.read_text())


def test_it_has_the_plan_the_running_trial_and_the_time_left(run_of_two):
    store, tasks, clock = run_of_two
    with ProgressFile(store, clock) as observer:
        observer.planned(tasks)
        assert (read_progress(store)["done"], read_progress(store)["total"], read_progress(store)["running"]) == (
            0,
            2,
            None,
        )
        observer.waiting("waiting for another trainoff run")
        assert read_progress(store)["note"] == "waiting for another trainoff run"
        clock.started(tasks[0])
        observer.started(tasks[0])
        running = read_progress(store)["running"]
        assert running["trial_id"] == tasks[0].trial_id
        assert running["title"] == f"numpy on digits-mlp (single, seed {tasks[0].trial.seed})"
        assert running["steps"] == 2 * -(-300 // tasks[0].trial.params["batch_size"])
        assert read_progress(store)["note"] is None
        assert read_progress(store)["left_s"] > 0
    assert list((store.folder / ".staging").iterdir()) == []


def test_it_is_written_at_most_once_a_second(run_of_two, monkeypatch):
    store, tasks, clock = run_of_two
    now, steps = 100.0, []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    with ProgressFile(store, clock) as observer:
        observer.planned(tasks)
        observer.started(tasks[0])
        for step in range(1, 31):
            now += 0.125
            observer.update(tasks[0], TrialState(100.0, phase="train", step=step, loss=float("nan")))
            steps.append(read_progress(store)["running"]["step"])
        assert read_progress(store)["running"]["loss"] is None, "JSON has no NaN"
    assert list(dict.fromkeys(steps)) == [0, 8, 16, 24]


@pytest.mark.parametrize("problem", ["no scratch folder", "a full disk", "a folder that is gone"])
def test_a_run_goes_on_if_its_progress_cannot_be_written(run_of_two, monkeypatch, problem):
    store, tasks, clock = run_of_two
    refused = []

    def refuse(*_: object, **__: object) -> None:
        refused.append(problem)
        raise OSError(errno.ENOSPC, "No space left on device")

    if problem == "no scratch folder":
        monkeypatch.setattr("tempfile.mkdtemp", refuse)
    if problem == "a full disk":
        monkeypatch.setattr("trainoff.report.progress.atomic_write", refuse)
    with ProgressFile(store, clock) as observer:
        observer.planned(tasks)
        if problem == "a folder that is gone":
            assert read_progress(store)["total"] == 2
            shutil.rmtree(store.folder)
        observer.started(tasks[0])
        observer.update(tasks[0], TrialState(0.0))
    assert refused or not store.folder.exists()


def test_a_run_from_python_writes_it_too(tmp_path, monkeypatch):
    counts = []
    monkeypatch.setattr(ProgressFile, "planned", lambda self, tasks: counts.append(len(tasks)))
    assert [record.status for record in run(study(tmp_path, "numpy"), tmp_path / "out").records] == ["ok"]
    assert counts == [1]
