"""The overrides of the command line, and checks of whole studies: their size, batches and clusters."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.study.grid import MOST_TRIALS, WHOLE_BATCHES, cases_of, count, swept
from trainoff.study.keys import ADDRESSES, HOST_KEYS, LIMITS, TOP, Allowed, StudySchema, checked, only
from trainoff.study.machines import LAB_KEYS
from trainoff.study.source import MakeError, Source
from trainoff.study.study import Study
from trainoff.study.suggestions import clean, quote, suggest

HOST = re.compile(r"(?!-)(?:(?P<user>[^@\s]+)@)?(?P<name>\[[0-9A-Fa-f:.]+\]|[^@:\s]+)(?::(?P<port>\d+))?")


def check_size(study: Study, source: Source) -> None:
    """Raise an error that names the largest factors if the study has too many trials."""
    trials = study.repeat * sum(count(engine, study.layers) for engine in study.engines)
    if trials <= MOST_TRIALS:
        return
    grid = {key: len(values) for engine in study.engines for key, values in swept(engine, study.layers).items()}
    cases = max(len(cases_of(engine, study.layers)) for engine in study.engines)
    factors = {**{quote(key): size for key, size in grid.items()}, "[[case]]": cases, "`repeat`": study.repeat}
    largest = sorted(factors.items(), key=lambda factor: -factor[1])[:3]
    listed = ", ".join(f"{name} ({size:,})" for name, size in largest if size > 1)
    key_path = ("grid", max(grid, key=lambda key: grid[key])) if grid else ("case",)
    raise source.error_at(*key_path)(
        f"the study has {trials:,} trials, and at most {MOST_TRIALS:,} are allowed; the largest factors are {listed}"
    )


def check_batches(study: Study, source: Source) -> None:
    """Raise an error if a worker would get no row of a batch."""
    for engine, values in study.settings():
        batch, workers = values["batch_size"], values["workers"]
        if batch < workers and values["mode"] not in WHOLE_BATCHES:
            raise _workers_error(study, source, engine)(
                f"a batch_size of {batch:,} cannot be shared by the {workers:,} workers of {quote(engine)}; "
                "expected at least one row per worker"
            )


def check_lab(study: Study, source: Source) -> None:
    """Raise an error if keys of a lab are used elsewhere, its machines are unknown, or its workers are given twice."""
    given = {key: list(_values_given(study, source, key)) for key in (*LAB_KEYS, "kind", "workers")}
    if "lab" not in [kind for _, kind in given["kind"]]:
        for key in LAB_KEYS:
            for make_error, _ in given[key]:
                raise make_error(f'{quote(key)} is of an emulated cluster; write kind = "lab" in [cluster]')
    listed = [(make_error, nodes) for make_error, nodes in given["nodes"] if isinstance(nodes, list)]
    single = [(make_error, [node]) for make_error, node in given["first"]]
    named = [(make_error, node["machine"]) for make_error, nodes in (*listed, *single) for node in nodes]
    machines = [*given["machine"], *((make_error, name) for make_error, name in named if name)]
    for make_error, name in machines:
        if name not in study.layers.machines:
            options = study.layers.machines
            raise make_error(f"{quote(name)} is not a machine; {suggest(name, options, 'the machines are')}")
    for key in ("scale", "memory_scale"):
        for make_error, _ in given[key] if not machines else ():
            raise make_error(f"{quote(key)} is of a machine, and none is named; write machine = ..., or leave it out")
    for make_error, _ in given["first"] if listed else ():
        raise make_error("`first` is one of nodes that are alike; where `nodes` is a list, say it there")
    for make_error, _ in given["nodes"] if given["workers"] else ():
        raise make_error("a lab has one worker on each of its nodes; leave out `workers`, or `nodes`")


def _values_given(study: Study, source: Source, key: str) -> Iterator[tuple[MakeError, Any]]:
    """Yield each value that the study gives a key for more than one engine, with its error factory."""
    layers = study.layers
    if key in layers.overrides:
        yield override_error(f"{key}={layers.overrides[key]}"), layers.overrides[key]
        return
    if key in layers.base:
        yield source.error_at("params" if source.has("params", key) else "cluster", key), layers.base[key]
    for place, value in enumerate(layers.grid.get(key, ())):
        yield source.error_at("grid", key, place), value
    for place, case in enumerate(layers.cases):
        if key in case:
            yield source.error_at("case", place, key), case[key]


def check_attached(study: Study, source: Source) -> None:
    """Raise an error if the kind `attach` has no address of a cluster, or another kind has one."""
    runs_on = {engine.name: engine.cluster for engine in study.engines}
    for engine, values in study.settings():
        if not (software := runs_on[engine]):
            continue
        key, example = ADDRESSES[software]
        attach, address = values["kind"] == "attach", values.get(key)
        if attach and not address:
            raise source.error_at("cluster", "kind")(
                f'{quote(engine)} has nothing to attach to; name the cluster, as in {key} = "{example}"'
            )
        if address and not attach:
            raise source.error_at("cluster", key)(
                f'`{key}` names a cluster that exists, but {quote(engine)} would start one; write kind = "attach"'
            )


def check_hosts(study: Study, source: Source) -> None:
    """Raise an error unless hosts are given, each once, and one for every worker."""
    for engine, values in study.settings():
        hosts, on_hosts = values.get("hosts", []), values["kind"] == "hosts"
        if on_hosts and not hosts:
            raise source.error_at("cluster", "kind")(
                f'{quote(engine)} has no hosts to run on; name them, as in hosts = ["alpha", "user@10.0.0.2:2222"]'
            )
        for key in HOST_KEYS if not on_hosts else ():
            if key in values:
                make_error = source.error_at("cluster", key)
                raise make_error(f'{quote(key)} says something about hosts only; write kind = "hosts"')
        make_error = source.error_at("cluster", "hosts")
        for host in hosts:
            if not HOST.fullmatch(host):
                raise make_error(f'{quote(host)} is not a host; expected one as in "alpha" or "user@10.0.0.2:2222"')
            if hosts.count(host) > 1:
                raise make_error(f"{quote(host)} is among the hosts twice; a host has one worker")
        if on_hosts and values["workers"] > len(hosts):
            raise _workers_error(study, source, engine)(
                f"{values['workers']:,} workers need as many hosts, and there are {len(hosts):,}; "
                "name more hosts, or leave `workers` out"
            )
    asked, hosts = study.layers.base.get("workers"), study.layers.base.get("hosts", [])
    if asked and asked < len(hosts):
        raise source.error_at("params", "workers")(
            f"`workers` is {asked:,}, and there are {len(hosts):,} hosts; leave it out, or sweep it in [grid]"
        )


def _workers_error(study: Study, source: Source, engine: str) -> MakeError:
    """Return the error factory of the place that sets the workers, or else the batch size."""
    keys = ("workers", "batch_size")
    for key in keys:
        if key in study.layers.overrides:
            return override_error(f"{key}={study.layers.overrides[key]}")
    for key in keys:
        for home in (("engine", engine), ("grid",), ("case", 0), ("params",)):
            if source.has(*home, key):
                return source.error_at(*home, key)
    return source.error_at()


_TOP = {name: TOP[name] for name in ("name", "targets", "repeat")}


@dataclass(frozen=True)
class Overrides:
    """The values of --set by where they apply; the last --set of a key holds."""

    top: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)  # for every engine that knows the key
    by_engine: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_overrides(texts: Iterable[str], schema: StudySchema, workloads: Mapping[str, object]) -> Overrides:
    """Read `key=value` texts, which are checked as the keys of a study file are."""
    overrides, sweepable = Overrides(), schema.sweepable(workloads)
    tables = ((overrides.top, only(_TOP)), (overrides.limits, only(LIMITS)), (overrides.values, sweepable))
    for text in texts:
        make_error = override_error(text)
        key, separator, value = text.partition("=")
        key = key.strip()
        if not separator or not key:
            raise make_error("expected key=value, as in --set learning_rate=0.1")
        target, allowed = next((each for each in tables if key in each[1]), (None, {}))
        if key.startswith("engine."):
            engine, key, allowed = _engine_key(key, schema, make_error)
            target = overrides.by_engine.setdefault(engine, {})
        elif target is None:
            raise _not_settable(key, schema, [*_TOP, *LIMITS, *sweepable], make_error)
        target[key] = checked(allowed[key], parse(value), make_error)
    return overrides


def override_error(text: str) -> MakeError:
    """Return a function that makes errors with the text of a --set."""
    return lambda message: TrainoffError(f"--set {clean(text)}: {message}")


def parse(text: str) -> Any:
    """Return a value written as in TOML; a bare word is a text."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text.strip()
    return tables["value"] if tables.keys() == {"value"} else text.strip()


def _not_settable(key: str, schema: StudySchema, options: Sequence[str], make_error: MakeError) -> TrainoffError:
    if key == "engines":
        return make_error("`engines` cannot be set here; choose among the study's engines with --engine")
    last = key.rpartition(".")[2]
    if last in options:
        return make_error(f"{quote(key)} is not a key that can be set; did you mean {quote(last)}?")
    return make_error(schema.unknown(key, "a key that can be set", options))


def _engine_key(key: str, schema: StudySchema, make_error: MakeError) -> tuple[str, str, Allowed]:
    """Return the engine of `engine.NAME.key`, the key, and the keys that the engine may have."""
    name, _, inner = key.removeprefix("engine.").rpartition(".")
    engines = {engine.name: engine for engine in schema.engines}
    if not name:
        raise make_error("expected engine.NAME.key=value")
    if name not in engines:
        raise make_error(f"{quote(name)} is not an engine of the study; {suggest(name, engines, 'they are')}")
    allowed = schema.of_engine(engines[name])
    if inner not in allowed:
        raise make_error(schema.unknown(inner, f"a key of [engine.{name}]", allowed))
    return name, inner, allowed
