"""The parts of tuning: search spaces, candidates, the pruning rule, verdicts, and the tuned study."""

import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.records import record, trained
from trainoff import data, engines, study
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.runner.events import SnapshotEvent, TrialState
from trainoff.tuning import EngineTuning, TuneOptions, results, search
from trainoff.tuning.engine_study import EngineStudy, engine_studies_of
from trainoff.tuning.results import PruningRule, TuningResult, badness, choose_target, with_comparisons
from trainoff.tuning.search import Space, Tried, propose
from trainoff.tuning.tuned_study import check_overrides, tuned_document
from trainoff.tuning.tuner import BudgetShare

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))


def engine_study(folder: Path, engine: str, more: str = "", workload: str = "digits-mlp", **asked: Any) -> EngineStudy:
    path = folder / "study.toml"
    path.write_text(f'workload = "{workload}"\nengines = ["{engine}"]\n{more}')
    (found,) = engine_studies_of(study.read(path, engines.facts(), **asked))
    data.get(found.recipe.data)
    return found


def keys(space: Space) -> set[str]:
    return {each.key for each in space.dimensions}


TRAINING = {"optimizer", "learning_rate", "momentum", "schedule", "batch_size", "epochs"}


def test_the_search_space_has_the_engines_keys(tmp_path: Path) -> None:
    assert keys(engine_study(tmp_path, "numpy").space) == TRAINING
    assert keys(engine_study(tmp_path, "tensorflow").space) == TRAINING | {"xla"}
    assert keys(engine_study(tmp_path, "spark-mllib").space) == {"max_iter", "solver", "block_size", "tol"}
    assert keys(engine_study(tmp_path, "dask-average", "[params]\nworkers = 2\nmode = 'local'").space) >= {"tau"}


def test_swept_and_overridden_keys_are_not_searched(tmp_path: Path) -> None:
    swept = engine_study(tmp_path, "numpy", "[grid]\nbatch_size = [16, 64]\n", overrides=["optimizer=momentum"])
    assert keys(swept.space) == TRAINING - {"batch_size", "optimizer"}
    assert swept.recipe.params["batch_size"] == 16
    assert swept.trial({"learning_rate": 0.7}).params["learning_rate"] == 0.7


def test_batches_are_per_worker_if_the_study_says_so(tmp_path: Path) -> None:
    found = engine_study(tmp_path, "torch-ddp", '[params]\nworkers = 2\nbatch_per = "worker"\nbatch_size = 20\n')
    assert found.recipe.params["batch_size"] == 40
    assert found.space.recipe["batch_size"] == 20
    assert found.trial({"batch_size": 10}).params["batch_size"] == 20


def test_a_candidate_equal_to_the_recipe_is_not_proposed(tmp_path: Path) -> None:
    space = engine_study(tmp_path, "numpy", "[params]\nepochs = 1\n").space
    assert propose(space, [Tried({}, 1.0)], 0) == {"learning_rate": 0.2}


def test_every_optimizer_has_its_own_range_of_learning_rates(tmp_path: Path) -> None:
    space = engine_study(tmp_path, "numpy").space
    ranges = {each.of: (each.low, each.high) for each in space.dimensions if each.key == "learning_rate"}
    assert list(ranges["momentum"]) == pytest.approx([0.01, 1.0])
    assert ranges["adam"][1] < 0.1 < ranges["sgd"][1]
    assert space.points(space.full({})) is not None, "the recipe is in the space"
    assert space.points({**space.full({}), "learning_rate": 5.0}) is None
    assert space.changes({"optimizer": "adam", "learning_rate": 0.01, "momentum": 0.6}) == {
        "optimizer": "adam",
        "learning_rate": 0.01,
    }


def test_the_recipe_is_first_and_candidates_are_reproducible(tmp_path: Path) -> None:
    space = engine_study(tmp_path, "numpy").space
    tried: list[Tried] = []
    for number in range(14):
        candidate = propose(space, tried, 0)
        assert candidate is not None
        assert candidate == propose(space, list(tried), 0)
        assert candidate not in [each.candidate for each in tried]
        assert space.points(space.full(candidate)) is not None
        tried.append(Tried(candidate, float(number)))
    assert tried[0].candidate == {}


def test_a_small_space_ends(tmp_path: Path) -> None:
    names = ["optimizer=sgd", "learning_rate=0.1", "schedule=constant", "batch_size=32", "momentum=0.5", "epochs=3"]
    space = engine_study(tmp_path, "tensorflow", overrides=names).space
    assert propose(space, [], 0) == {}
    assert propose(space, [Tried({}, 1.0)], 0) == {"xla": True}
    assert propose(space, [Tried({}, 1.0), Tried({"xla": True}, 2.0)], 0) is None


def test_a_missing_optuna_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "find_spec", lambda name: None)
    with pytest.raises(TrainoffError, match=r"run: pip install 'trainoff\[tune\]'"):
        search.check_optuna()


def run(seconds: float | None, accuracy: float = 0.9, seed: int = 1, **more: Any) -> Record:
    """Return a run that reached 90 % after `seconds`, or never."""
    return trained(
        f"numpy-{seed}", seed=seed, time_to_target={"0.9": seconds}, test_metrics={"accuracy": accuracy}, **more
    )


def test_runs_are_ordered_by_time_and_then_by_closeness_to_the_target() -> None:
    best_first = [
        run(0.5),
        run(0.7, status="timeout", reason="given up after 2 s of training: another candidate needed 0.5 s in all"),
        run(700.0),
        run(None, 0.89),
        run(None, 0.5, status="timeout"),
        run(0.1, status="crashed"),
        record(status="unsupported"),
    ]
    order = sorted(best_first, key=lambda each: badness(each, 0.9))
    assert order == best_first


def test_a_smaller_error_is_better() -> None:
    close, far = (
        trained(metric="error", time_to_target={"0.2": None}, test_metrics={"error": error}) for error in (0.21, 0.3)
    )
    assert badness(close, 0.2) < badness(far, 0.2)
    reached = trained(
        metric="error", time_to_target={"0.2": 1.0, "0.19": 2.0, "0.1": None}, test_metrics={"error": 0.18}
    )
    assert choose_target([0.2, 0.19, 0.1], reached, None) == 0.19


def test_the_hardest_target_that_the_recipe_reaches_is_tuned_for() -> None:
    reached = trained(time_to_target={"0.5": 1.0, "0.9": 2.0, "0.95": None}, test_metrics={"accuracy": 0.92})
    assert choose_target([0.5, 0.9, 0.95], reached, None) == 0.9
    assert choose_target([0.5, 0.9, 0.95], reached, 0.5) == 0.5
    assert choose_target([0.97, 0.98], trained(time_to_target={"0.97": None, "0.98": None}), None) == 0.97


def test_a_target_that_is_only_just_reached_is_not_tuned_for() -> None:
    times = {"0.5": 1.0, "0.9": 2.0}
    of_few = trained(time_to_target=times, test_metrics={"accuracy": 0.905}, dataset={"test_rows": 300})
    assert choose_target([0.5, 0.9], of_few, None) == 0.5  # the standard error of 300 rows is 1.7 % here
    of_many = replace(of_few, dataset={"test_rows": 10_000})
    assert choose_target([0.5, 0.9], of_many, None) == 0.9  # and that of 10,000 rows is 0.3 %


NOW = 1000.0


@pytest.fixture
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "time", SimpleNamespace(monotonic=lambda: NOW))


def state(trained_s: float, loss: float = 1.0, paused_s: float = 0.0) -> TrialState:
    snapshots = [SnapshotEvent(t=NOW, step=1, samples_seen=1, train_s=trained_s, loss=loss, file="1")]
    return TrialState(NOW - trained_s, train_start=NOW - trained_s - paused_s, paused_s=paused_s, snapshots=snapshots)


@pytest.mark.usefixtures("_stopped_clock")
def test_a_candidate_is_given_up_once_it_cannot_win() -> None:
    assert PruningRule(10.0).give_up(state(12.0)) is None
    assert PruningRule(10.0).give_up(state(12.0, paused_s=60.0)) is None, "pauses for snapshots do not count"
    assert "another candidate needed 10 s in all" in str(PruningRule(10.0).give_up(state(13.0)))
    assert PruningRule(0.01).give_up(state(0.5)) is None, "so short a training is not stopped"
    assert PruningRule(10.0).give_up(TrialState(0.0)) is None, "it has not started to train"


@pytest.mark.usefixtures("_stopped_clock")
def test_a_candidate_is_given_up_when_its_loss_is_far_behind_halfway() -> None:
    curves = [[(1.0, 2.0), (5.0, loss)] for loss in (0.1, 0.2, 0.3, 0.4)]
    assert PruningRule(10.0, curves).give_up(state(6.0, loss=0.3)) is None
    assert "its loss was 0.9, and 0.25 is usual by then" in str(PruningRule(10.0, curves).give_up(state(6.0, loss=0.9)))
    assert PruningRule(10.0, curves).give_up(state(4.0, loss=9.0)) is None, "not before half of the best time"
    assert PruningRule(10.0, curves[:3]).give_up(state(6.0, loss=0.9)) is None, "three curves are too few"


def raced(times: list[tuple[float | None, float | None]]) -> EngineTuning:
    """Return the tuning of an engine with these times of the challenger and the recipe in each round."""
    pairs = [(run(a, seed=seed), run(b, seed=seed)) for seed, (a, b) in enumerate(times)]
    tried = [({}, run(2.0)), ({"epochs": 1}, run(1.0))]
    return with_comparisons([EngineTuning("numpy", 0.9, tried, {"epochs": 1}, pairs)])[0]


@pytest.mark.parametrize(
    ("times", "verdict", "wins"),
    [
        ([(1.0, 2.0), (1.1, 2.0), (1.0, 2.1), (0.9, 2.0), (1.0, 1.9)], "faster", True),
        ([(1.0, 1.0), (1.01, 1.0), (1.0, 1.01), (0.99, 1.0), (1.0, 1.0)], "within 5%", False),
        ([(2.0, 1.0), (2.1, 1.0), (2.0, 1.1), (1.9, 1.0), (2.0, 1.0)], "within 5%", False),
        ([(1.0, 2.0)], "undecided", True),
        ([(2.0, 1.0)], "undecided", False),
        ([(1.0, 3.0), (3.0, 1.0), (1.0, 2.0), (2.0, 1.5), (1.0, 1.1)], "undecided", True),
        ([(1.0, None), (1.1, None), (1.0, None), (0.9, None), (1.0, None)], "faster", True),
        ([(None, 1.0), (None, 1.1), (None, 1.0), (None, 0.9), (None, 1.0)], "within 5%", False),
        ([(None, 1.0)], "undecided", False),
        ([], "undecided", True),  # there was no race; the challenger won the search
    ],
)
def test_the_race_decides(times: Any, verdict: str, wins: bool) -> None:
    found = raced(times)
    assert (found.verdict, bool(found.winner)) == (verdict, wins), found.sentence
    assert found.sentence.startswith("numpy: ")


@pytest.mark.parametrize(
    ("seconds", "trials", "goes_on"), [(1000, 3, True), (20, 2, True), (20, 3, False), (5, 1, False)]
)
def test_time_for_the_race_is_reserved_after_a_few_candidates(seconds: float, trials: int, goes_on: bool) -> None:
    share = BudgetShare(seconds, rounds=5)
    for _ in range(trials):
        share.book(record(), took_s=10.0)
    assert share.for_search == goes_on
    assert share.rounds_left == min(5, round(seconds / 20))


def test_options_are_checked() -> None:
    with pytest.raises(TrainoffError, match="--minutes -1"):
        TuneOptions(-1)
    assert replace(TuneOptions(5), rounds=0).rounds == 0


def written(asked: study.Study, path: Path) -> study.Study:
    """The tuned study of an empty search, read back."""
    path.write_text(tuned_document(asked, TuningResult("study"), path).as_string())
    return study.read(path, engines.facts())


def identities(of: study.Study) -> list[str]:
    return sorted(str(trial.identity()) for trial in of.trials())


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.stem))
def test_a_study_is_written_as_it_was_read(path: Path, tmp_path: Path) -> None:
    first = study.read(path, engines.facts()).trials()[0].workload
    asked = study.read(path, engines.facts(), overrides=[f"workload={first}"])
    again = written(asked, tmp_path / "again.toml")
    assert again.name == f"{asked.name}-tuned"
    assert identities(again) == identities(asked)
    assert again.limits == asked.limits
    assert again.trials()[0].targets == asked.trials()[0].targets


def test_the_comments_of_a_study_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        '# Digits, quickly.\nworkload = "digits-mlp"  # small\nengines = ["numpy", "torch"]\n\n'
        "[params]\nepochs = 2  # enough\n# As the paper has it:\nlearning_rate = 0.1\n\n[engine.torch]\nepochs = 3\n"
    )
    asked = study.read(path, engines.facts(), overrides=["learning_rate=0.2", "engine.numpy.batch_size=16"])
    text = tuned_document(asked, TuningResult("study"), path.with_name("again.toml")).as_string()
    for comment in ("# Digits, quickly.", "# small", "# enough", "# As the paper has it:"):
        assert comment in text
    tables = tomllib.loads(text)
    assert tables["params"] == {"epochs": 2, "learning_rate": 0.2}
    assert tables["engine"] == {"torch": {"epochs": 3}, "numpy": {"batch_size": 16}}


def sweeping(folder: Path, *overrides: str) -> study.Study:
    path = folder / "study.toml"
    path.write_text(
        'engines = ["numpy", "torch"]\n[grid]\nbatch_size = [16, 64]\n'
        '[workload.mine]\ndata = "digits"\ntargets = [0.9]\n'
    )
    return study.read(path, engines.facts(), overrides=list(overrides))


def test_overridden_targets_are_in_the_tuned_study(tmp_path: Path) -> None:
    sweep = sweeping(tmp_path, "targets=[0.8]", "batch_size=16")
    again = written(sweep, tmp_path / "again.toml")
    assert again.workloads["mine"].targets == sweep.workloads["mine"].targets == (0.8,)


def test_an_override_of_one_engine_may_not_be_of_a_swept_key(tmp_path: Path) -> None:
    check_overrides(sweeping(tmp_path, "engine.numpy.learning_rate=0.2"))
    with pytest.raises(TrainoffError, match=r"^--set engine\.numpy\.batch_size: the study sweeps batch_size"):
        check_overrides(sweeping(tmp_path, "engine.numpy.batch_size=32"))


def test_unusual_values_are_written_correctly(tmp_path: Path) -> None:
    overrides = [
        "hidden=[3, 4]",
        "learning_rate=1e-07",
        "stop={tol=1e-4, patience=3}",
        'spark={"spark.ui.port"="a \\"b\\" é", "spark.x"=true}',
        "kind=lab",
        "nodes=[{cores=1.0}, {cores=2.0}]",
        "fault={action='slow', share=0.5}",
        "timeout_s=900.0",
        "engine.spark-torch.stop={tol=0.1}",
    ]
    path = tmp_path / "study.toml"
    path.write_text('workload = "digits-mlp"\nengines = ["torch-ddp", "spark-torch"]\n[limits]\ntimeout_s = 5\n')
    asked = study.read(path, engines.facts(), overrides=overrides)
    again = written(asked, tmp_path / "again.toml")
    assert identities(again) == identities(asked)
    assert again.limits == asked.limits
