"""dask-sklearn: scikit-learn's classifiers on Dask's workers, each on rows of its own, averaged by rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from trainoff.engines.contract import Knob
from trainoff.engines.dask.local_sgd import OnDask
from trainoff.engines.shared.local_sgd.driver import SklearnAveraging

if TYPE_CHECKING:
    from trainoff.study import Trial


class DaskSklearn(SklearnAveraging, OnDask):
    """MLPClassifier and SGDClassifier on every worker. The mode search is joblib's, which cannot spread one fit."""

    name = "dask-sklearn"
    about = "scikit-learn's MLPClassifier and SGDClassifier on every Dask worker's own rows, weights averaged"
    modules = (*OnDask.modules, "sklearn", "joblib")
    on_workers = (*OnDask.on_workers, "sklearn")
    knobs: ClassVar[Mapping[str, Knob]] = {**SklearnAveraging.knobs, **OnDask.knobs}
    apart = True

    def differs(self, trial: Trial) -> str | None:
        if trial.mode != "search" and trial.workers > 1:
            return "every worker draws its batches from its own part of the rows"
        return super().differs(trial)
