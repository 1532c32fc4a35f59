"""Refuses a study that is too large to be meant, whose batches cannot be shared, or whose cluster is nowhere."""

from __future__ import annotations

from trainoff.study.expand import MOST_TRIALS, WHOLE_BATCHES, cases_of, count, swept
from trainoff.study.keys import ADDRESSES
from trainoff.study.near import quote
from trainoff.study.sets import complaint
from trainoff.study.source import Complain, Source
from trainoff.study.study import Study


def check_size(study: Study, source: Source) -> None:
    """Count the trials without making them; too many is an error that names the largest factors."""
    trials = study.repeat * sum(count(engine, study.layers) for engine in study.engines)
    if trials <= MOST_TRIALS:
        return
    grid = {key: len(values) for engine in study.engines for key, values in swept(engine, study.layers).items()}
    cases = max(len(cases_of(engine, study.layers)) for engine in study.engines)
    factors = {
        **{quote(key): size for key, size in grid.items()},
        "[[case]]": cases,
        "`repeat`": study.repeat,
    }
    largest = sorted(factors.items(), key=lambda factor: -factor[1])[:3]
    listed = ", ".join(f"{name} ({size:,})" for name, size in largest if size > 1)
    spot = ("grid", max(grid, key=lambda key: grid[key])) if grid else ("case",)
    raise source.at(*spot)(
        f"the study has {trials:,} trials, and at most {MOST_TRIALS:,} are allowed; the largest factors are {listed}"
    )


def check_batches(study: Study, source: Source) -> None:
    """Every worker must get at least one row of every batch."""
    for engine, values in study.settings():
        batch, workers = values["batch_size"], values["workers"]
        if batch < workers and values["mode"] not in WHOLE_BATCHES:
            raise _blame(study, source, engine)(
                f"a batch_size of {batch:,} cannot be shared by the {workers:,} workers of {quote(engine)}; "
                "expected at least one row per worker"
            )


def check_attached(study: Study, source: Source) -> None:
    """An existing cluster must be named, and a name without one is a mistake."""
    runs_on = {engine.name: engine.cluster for engine in study.engines}
    for engine, values in study.settings():
        if not (software := runs_on[engine]):
            continue
        key, example = ADDRESSES[software]
        attach, address = values["kind"] == "attach", values.get(key)
        if attach and not address:
            raise source.at("cluster", "kind")(
                f'{quote(engine)} has nothing to attach to; name the cluster, as in {key} = "{example}"'
            )
        if address and not attach:
            raise source.at("cluster", key)(
                f'`{key}` names a cluster that exists, but {quote(engine)} would start one; write kind = "attach"'
            )


def _blame(study: Study, source: Source, engine: str) -> Complain:
    """Where the number of workers is set, or else the batch size; --set before the file."""
    keys = ("workers", "batch_size")
    for key in keys:
        if key in study.layers.sets:
            return complaint(f"{key}={study.layers.sets[key]}")
    for key in keys:
        for home in (("engine", engine), ("grid",), ("case", 0), ("params",)):
            if source.has(*home, key):
                return source.at(*home, key)
    return source.at()
