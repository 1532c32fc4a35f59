"""The watch and its channel of events: phases, pauses, snapshots, the stop rule."""

import contextlib
import errno
import json
import os
import threading
import time

import numpy as np
import pytest
from msgspec import convert

from trainoff.data import Order
from trainoff.engines.shared.snapshots import SnapshotBuffer
from trainoff.engines.shared.watch import PIPE_BUF, Channel, Diverged, StopRule, TrialWatch
from trainoff.runner.events import AnyEvent, TrialState


class Pipe:
    """The reading end of a channel."""

    def __init__(self, folder):
        self.path = folder / "events"
        os.mkfifo(self.path)
        self._reader = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)

    def events(self):
        try:
            lines = os.read(self._reader, 1 << 20).splitlines()
        except BlockingIOError:
            return []
        return [json.loads(line) for line in lines]


@pytest.fixture
def pipe(tmp_path):
    return Pipe(tmp_path)


@pytest.fixture
def watch(tmp_path, pipe):
    watching = TrialWatch(Channel(pipe.path), tmp_path)
    watching.prepare(Order("x", rows=100, batch_size=10, epochs=5, seed=1), 6, snapshot_every=150, stop=None)
    return watching


def test_phases_nest_and_leave_no_gap(watch, pipe):
    state = TrialState(time.monotonic())
    with watch.phase("ship"), watch.phase("compile"):
        time.sleep(0.02)
    for event in pipe.events():
        state.apply(convert(event, AnyEvent))
    end = time.monotonic()
    phases = state.phases_s(end)
    assert phases["compile"] >= 0.02
    assert phases["train"] is None
    assert sum(value or 0 for value in phases.values()) == pytest.approx(end - state.start)


def test_the_phase_reached_before_an_error_is_kept(watch, pipe):
    state = TrialState(time.monotonic())
    with contextlib.suppress(ValueError), watch.phase("train"):
        raise ValueError
    for event in pipe.events():
        state.apply(convert(event, AnyEvent))
    state.apply(convert({"t": time.monotonic(), "kind": "phase", "name": "teardown"}, AnyEvent))
    assert (state.phase, state.reached) == ("teardown", "train")


def test_figures_that_are_not_finite_are_refused(watch, pipe):
    pipe.events()
    for report in (
        lambda: watch.count("rounds", float("nan")),
        lambda: watch.breakdown("waiting_s", {"worker-0": float("inf")}),
        lambda: watch.task("worker-0", 0.0, float("nan")),
    ):
        with pytest.raises(ValueError, match="a finite number"):
            report()
    assert pipe.events() == []


def test_an_unknown_phase_is_refused(watch):
    with pytest.raises(ValueError, match="`lunch` is not a phase; the phases are import"), watch.phase("lunch"):
        pass


def test_snapshots_are_due_at_certified_steps_by_samples_and_at_the_end(watch):
    due = []
    for step in range(1, 51):
        watch.progress(step, 0.5)
        if watch.due():
            due.append(step)
            watch.snapshot(step * 10, [np.zeros((2, 2)), np.zeros(2)])
    assert due == [1, 15, 20, 30, 45, 50]


def test_the_clock_is_stopped_during_a_snapshot(watch, pipe):
    with watch.phase("train"):
        watch.progress(1, 0.5)
        assert watch.due()
        time.sleep(0.05)
        watch.snapshot(10, [np.zeros(6)])
        watch.progress(20, 0.5)
        assert watch.due()
        watch.snapshot(200, [np.zeros(6)])
    events = pipe.events()
    pauses = [event["seconds"] for event in events if event["kind"] == "pause"]
    first, second = [event for event in events if event["kind"] == "snapshot"]
    assert pauses[0] >= 0.05
    assert second["train_s"] - first["train_s"] < second["t"] - first["t"]


def test_a_due_snapshot_that_is_not_taken_does_not_stop_the_clock(watch, pipe):
    with watch.phase("train"):
        watch.progress(20, 0.5)
        assert watch.due()
        time.sleep(0.05)
        watch.progress(21, 0.5)
        start = time.monotonic()
        watch.snapshot(210, [np.zeros(6)])
        took = time.monotonic() - start
    (pause,) = [event["seconds"] for event in pipe.events() if event["kind"] == "pause"]
    assert pause <= took


def test_an_event_that_is_too_long_is_refused(pipe):
    with pytest.raises(ValueError, match="does not fit"):
        Channel(pipe.path).emit("spent", roles=list(range(5000)), text="")


def test_a_loss_or_weight_that_is_not_finite_ends_the_training(watch):
    with pytest.raises(Diverged, match="the loss became nan at step 3"):
        watch.progress(3, float("nan"))
    watch.progress(1, 0.5)
    with pytest.raises(Diverged, match="a weight is no longer finite"):
        watch.snapshot(10, [np.array([1.0, np.inf] * 3)])


def test_a_snapshot_must_fit_the_network(watch):
    watch.progress(1, 0.5)
    with pytest.raises(ValueError, match="a snapshot of 4 weights; the network has 6"):
        watch.snapshot(10, [np.zeros((2, 2))])


def test_a_long_training_has_at_most_a_hundred_snapshots(watch):
    watch.prepare(Order("x", rows=1000, batch_size=1, epochs=10, seed=1), 6, snapshot_every=1, stop=None)
    snapshots = 0
    for step in range(1, 10_001):
        watch.progress(step)
        if watch.due():
            snapshots += 1
            watch.snapshot(step, [np.zeros(6)])
    assert snapshots == 102  # a hundred and the two certified steps


def test_events_of_several_writers_do_not_mix(pipe):
    def write(number):
        channel = Channel(pipe.path)
        for _ in range(50):
            channel.emit("count", name=f"writer {number}", value=number, filler="x" * 200)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    events = []
    while any(thread.is_alive() for thread in threads):
        events += pipe.events()
    events += pipe.events()
    assert len(events) == 200
    for thread in threads:
        thread.join()


def test_a_long_traceback_is_cut_at_its_beginning(pipe):
    Channel(pipe.path).emit("error", traceback="\n" * 5000 + "the end", reason="because")
    (event,) = pipe.events()
    assert event["traceback"].endswith("the end")
    assert event["reason"] == "because"
    assert len(json.dumps(event)) < PIPE_BUF


def test_the_stop_rule_agrees_with_scikit_learns():
    """The same losses end the training at the same epoch."""
    from sklearn.neural_network import MLPClassifier

    rng = np.random.default_rng(3)
    x, y = rng.random((60, 4)), rng.integers(0, 3, 60)
    tol, patience = 0.002, 3
    model = MLPClassifier((5,), solver="sgd", learning_rate_init=0.05, batch_size=60, tol=tol,
                          n_iter_no_change=patience, max_iter=500, random_state=1)  # fmt: skip
    model.fit(x, y)
    rule = StopRule(tol, patience)
    ours = next(epoch for epoch, loss in enumerate(model.loss_curve_, 1) if rule.seen(loss, 60, True))
    assert ours == model.n_iter_ < 500


def test_pending_work_is_finished_on_the_clock_before_a_snapshot(watch, pipe):
    with watch.phase("train"):
        watch.progress(1)
        assert watch.due(lambda: time.sleep(0.05))
        watch.snapshot(10, [np.zeros(6)])
        watch.progress(2)
        assert not watch.due(lambda: pytest.fail("no snapshot is due"))
    (event,) = [event for event in pipe.events() if event["kind"] == "snapshot"]
    assert event["train_s"] >= 0.05  # including the pending work


@pytest.mark.parametrize("size", [1, 1024, 1025, 100_000])
def test_a_snapshot_of_any_size_is_written_completely(tmp_path, size):
    buffer, weights = SnapshotBuffer(size), np.arange(size, dtype=np.float32)
    buffer.fill([weights])
    buffer.write(tmp_path / "snapshot")
    np.testing.assert_array_equal(np.fromfile(tmp_path / "snapshot", np.float32, size), weights)


def test_a_snapshot_is_written_where_direct_io_is_not_supported(tmp_path, monkeypatch):
    opened, real_open = [], os.open

    def refuse(path, flags, mode):
        opened.append(flags)
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "direct I/O is not supported")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    buffer = SnapshotBuffer(6)
    buffer.fill([np.ones((2, 2)), np.zeros(2)])
    buffer.write(tmp_path / "snapshot")
    assert np.fromfile(tmp_path / "snapshot", np.float32, 6).tolist() == [1, 1, 1, 1, 0, 0]
    assert len(opened) == 2


def test_a_breakdown_larger_than_one_event_is_put_together(watch, pipe):
    figures = {f"worker-{number}": float(number) for number in range(200)}  # more than fit in one event
    watch.breakdown("waiting_s", figures)
    state = TrialState(0.0)
    for event in pipe.events():
        state.apply(convert(event, AnyEvent))
    assert state.breakdowns == {"waiting_s": figures}
