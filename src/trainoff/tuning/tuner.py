"""The tuner: whether a study can be tuned here, and one engine's contest after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from trainoff import data
from trainoff.errors import TrainoffError
from trainoff.records import Store, scan
from trainoff.runner.estimate import Estimator
from trainoff.runner.runner import Runner, RunObserver
from trainoff.runner.status import cannot
from trainoff.study import Study
from trainoff.tuning.engine_study import EngineStudy, lanes_of, with_rows
from trainoff.tuning.outcome import Tuned, Tuning, check_targets, compared
from trainoff.tuning.search import check_optuna
from trainoff.tuning.tournament import Budget, Stopped, Tournament, TournamentEntry, TuneOptions, TuneStep


def check(study: Study, options: TuneOptions) -> None:
    """Refuse what cannot be tuned, before anything is downloaded or run."""
    check_optuna()
    lanes = lanes_of(study)
    check_targets(lanes[0].recipe.workload, lanes[0].recipe.targets, options.target)
    _ready(lanes)


def get_rows(study: Study, say: data.Progress) -> None:
    """Bring the validation rows into the cache."""
    data.get(lanes_of(study)[0].recipe.data, say=say)


def tune(study: Study, out: Path, options: TuneOptions, say: Callable[[TuneStep], None], view: RunObserver) -> Tuning:
    """Tune every engine of a study that is ready here; records go to `<out>/<study>-tune`.

    Ctrl-C ends it early with what is known by then. Run again, it takes up what was tried before.
    """
    check(study, options)
    get_rows(study, lambda *_: None)
    ready, absent = _ready(lanes_of(study))
    ready = [with_rows(lane) for lane in ready]
    store = Store(out / f"{study.name}-tune")
    store.prepare()
    budget = Budget(options.minutes)
    estimator = Estimator(scan(out)[0])
    new = [lane.recipe for lane in ready if lane.task(lane.recipe, store).to_run]
    budget.check([estimator.seconds(trial) for trial in new], options.rounds)
    place = TournamentEntry(store, Runner(store, view), budget, options, say)
    found, interrupted = _one_by_one(place, ready)
    return Tuning(study.name, compared([*found, *absent]), interrupted, place.made)


def _one_by_one(place: TournamentEntry, lanes: Sequence[EngineStudy]) -> tuple[list[Tuned], bool]:
    contests: list[Tournament] = []
    with contextlib.suppress(Stopped, KeyboardInterrupt):
        for number, lane in enumerate(lanes):
            contests.append(Tournament(place, lane, place.budget.share(len(lanes) - number, place.options.rounds)))
            contests[-1].go()
        return [contest.result for contest in contests], False
    late = [Tuned(lane.name, why_not="it was stopped before its turn") for lane in lanes[len(contests) :]]
    return [*(contest.result for contest in contests), *late], True


def _ready(lanes: Sequence[EngineStudy]) -> tuple[list[EngineStudy], list[Tuned]]:
    """The lanes that can run here, and for the others why not."""
    refused = {lane.name: cannot(lane.recipe, lane.engine) for lane in lanes}
    ready = [lane for lane in lanes if refused[lane.name] is None]
    absent = [Tuned(name, why_not=verdict.reason) for name, verdict in refused.items() if verdict]
    if not ready:
        told = "; ".join(f"{one.engine}: {one.why_not}" for one in absent)
        raise TrainoffError(f"none of the study's engines can be tuned here; {told}")
    return ready, absent
