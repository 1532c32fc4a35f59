"""The overrides of the command line, and checks of whole studies: their size, batches and clusters."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.study.grid import MOST_TRIALS, WHOLE_BATCHES, cases_of, count, swept
from trainoff.study.keys import ADDRESSES, HOST_KEYS, LIMITS, TOP, StudySchema, checked, only
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
    kinds = {kind for _, kind in _values_given(study, source, "kind")}
    for key in LAB_KEYS:
        for make_error, _ in _values_given(study, source, key):
            if "lab" not in kinds:
                raise make_error(f'{quote(key)} is of an emulated cluster; write kind = "lab" in [cluster]')
    for make_error, name in _machines(study, source):
        if name not in study.layers.machines:
            options = study.layers.machines
            raise make_error(f"{quote(name)} is not a machine; {suggest(name, options, 'the machines are')}")
    named = any(True for _ in _machines(study, source))
    for key in ("scale", "memory_scale"):
        for make_error, _ in _values_given(study, source, key):
            if not named:
                raise make_error(
                    f"{quote(key)} is of a machine, and none is named; write machine = ..., or leave it out"
                )
    listed = any(isinstance(nodes, list) for _, nodes in _values_given(study, source, "nodes"))
    for make_error, _ in _values_given(study, source, "first"):
        if listed:
            raise make_error("`first` is one of nodes that are alike; where `nodes` is a list, say it there")
    for make_error, _ in _values_given(study, source, "nodes"):
        if any(True for _ in _values_given(study, source, "workers")):
            raise make_error("a lab has one worker on each of its nodes; leave out `workers`, or `nodes`")


def _machines(study: Study, source: Source) -> Iterator[tuple[MakeError, str]]:
    """Return every machine name in the study, of all nodes or of one."""
    yield from _values_given(study, source, "machine")
    for key in ("nodes", "first"):
        for make_error, value in _values_given(study, source, key):
            nodes = value if isinstance(value, list) else [value] if key == "first" else []
            yield from ((make_error, node["machine"]) for node in nodes if node["machine"])


def _values_given(study: Study, source: Source, key: str) -> Iterator[tuple[MakeError, Any]]:
    """Yield each value that the study gives a key for more than one engine, with its error factory."""
    layers = study.layers
    if key in layers.overrides:
        yield override_error(f"{key}={layers.overrides[key]}"), layers.overrides[key]
        return
    if key in layers.base:
        home = next((home for home in ("cluster", "params") if source.has(home, key)), "cluster")
        yield source.error_at(home, key), layers.base[key]
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
                raise source.error_at("cluster", key)(
                    f'{quote(key)} says something about hosts only; write kind = "hosts"'
                )
        for host in hosts:
            if not HOST.fullmatch(host):
                raise source.error_at("cluster", "hosts")(
                    f'{quote(host)} is not a host; expected one as in "alpha" or "user@10.0.0.2:2222"'
                )
            if hosts.count(host) > 1:
                raise source.error_at("cluster", "hosts")(
                    f"{quote(host)} is among the hosts twice; a host has one worker"
                )
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
    overrides = Overrides()
    for text in texts:
        make_error = override_error(text)
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise make_error("expected key=value, as in --set learning_rate=0.1")
        _read_override(overrides, key.strip(), parse(value), make_error, schema, workloads)
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


def _read_override(
    overrides: Overrides,
    key: str,
    value: Any,
    make_error: MakeError,
    schema: StudySchema,
    workloads: Mapping[str, object],
) -> None:
    if key.startswith("engine."):
        _read_engine_override(overrides, key, value, make_error, schema)
        return
    sweepable = schema.sweepable(workloads)
    for target, allowed in (
        (overrides.top, only(_TOP)),
        (overrides.limits, only(LIMITS)),
        (overrides.values, sweepable),
    ):
        if key in allowed:
            target[key] = checked(allowed[key], value, make_error)
            return
    if key == "engines":
        raise make_error("`engines` cannot be set here; choose among the study's engines with --engine")
    options = [*_TOP, *LIMITS, *sweepable]
    last = key.rpartition(".")[2]
    if last in options:
        raise make_error(f"{quote(key)} is not a key that can be set; did you mean {quote(last)}?")
    raise make_error(schema.unknown(key, "a key that can be set", options))


def _read_engine_override(
    overrides: Overrides, key: str, value: Any, make_error: MakeError, schema: StudySchema
) -> None:
    _, _, rest = key.partition(".")
    engines = {engine.name: engine for engine in schema.engines}
    name, _, inner = rest.rpartition(".")
    if not name:
        raise make_error("expected engine.NAME.key=value")
    if name not in engines:
        raise make_error(f"{quote(name)} is not an engine of the study; {suggest(name, engines, 'they are')}")
    allowed = schema.of_engine(engines[name])
    if inner not in allowed:
        raise make_error(schema.unknown(inner, f"a key of [engine.{name}]", allowed))
    overrides.by_engine.setdefault(name, {})[inner] = checked(allowed[inner], value, make_error)
