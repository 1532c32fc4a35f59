"""What the command line changes in a study, and the studies that cannot run: too large, or with no cluster."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.study.grid import MOST_TRIALS, WHOLE_BATCHES, cases_of, count, swept
from trainoff.study.keys import ADDRESSES, LIMITS, OF_HOSTS, TOP, Vocabulary, checked, only
from trainoff.study.machines import OF_LAB
from trainoff.study.source import Complain, Source
from trainoff.study.study import Study
from trainoff.study.suggestions import clean, quote, suggest

HOST = re.compile(r"(?!-)(?:(?P<user>[^@\s]+)@)?(?P<name>\[[0-9A-Fa-f:.]+\]|[^@:\s]+)(?::(?P<port>\d+))?")


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


def check_lab(study: Study, source: Source) -> None:
    """What only a lab has is a mistake elsewhere; its machines must be known, and its workers are its nodes."""
    kinds = {kind for _, kind in _said(study, source, "kind")}
    for key in OF_LAB:
        for complain, _ in _said(study, source, key):
            if "lab" not in kinds:
                raise complain(f'{quote(key)} is of an emulated cluster; write kind = "lab" in [cluster]')
    for complain, name in _machines(study, source):
        if name not in study.layers.machines:
            options = study.layers.machines
            raise complain(f"{quote(name)} is not a machine; {suggest(name, options, 'the machines are')}")
    named = any(True for _ in _machines(study, source))
    for key in ("scale", "memory_scale"):
        for complain, _ in _said(study, source, key):
            if not named:
                raise complain(f"{quote(key)} is of a machine, and none is named; write machine = ..., or leave it out")
    listed = any(isinstance(nodes, list) for _, nodes in _said(study, source, "nodes"))
    for complain, _ in _said(study, source, "first"):
        if listed:
            raise complain("`first` is one of nodes that are alike; where `nodes` is a list, say it there")
    for complain, _ in _said(study, source, "nodes"):
        if any(True for _ in _said(study, source, "workers")):
            raise complain("a lab has one worker on each of its nodes; leave out `workers`, or `nodes`")


def _machines(study: Study, source: Source) -> Iterator[tuple[Complain, str]]:
    """Every machine that is named, for all nodes or for one."""
    yield from _said(study, source, "machine")
    listed = [(complain, nodes) for complain, nodes in _said(study, source, "nodes") if isinstance(nodes, list)]
    for complain, nodes in [*listed, *((complain, [first]) for complain, first in _said(study, source, "first"))]:
        yield from ((complain, node["machine"]) for node in nodes if node["machine"])


def _said(study: Study, source: Source, key: str) -> Iterator[tuple[Complain, Any]]:
    """Every value that the study gives a key for more than one engine, and where to complain about it."""
    layers = study.layers
    if key in layers.sets:
        yield complaint(f"{key}={layers.sets[key]}"), layers.sets[key]
        return
    if key in layers.base:
        home = next((home for home in ("cluster", "params") if source.has(home, key)), "cluster")
        yield source.at(home, key), layers.base[key]
    for place, value in enumerate(layers.grid.get(key, ())):
        yield source.at("grid", key, place), value
    for place, case in enumerate(layers.cases):
        if key in case:
            yield source.at("case", place, key), case[key]


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


def check_hosts(study: Study, source: Source) -> None:
    """Hosts must be named, each once, and there must be one for every worker."""
    for engine, values in study.settings():
        hosts, on_hosts = values.get("hosts", []), values["kind"] == "hosts"
        if on_hosts and not hosts:
            raise source.at("cluster", "kind")(
                f'{quote(engine)} has no hosts to run on; name them, as in hosts = ["alpha", "user@10.0.0.2:2222"]'
            )
        for key in OF_HOSTS if not on_hosts else ():
            if key in values:
                raise source.at("cluster", key)(f'{quote(key)} says something about hosts only; write kind = "hosts"')
        for host in hosts:
            if not HOST.fullmatch(host):
                raise source.at("cluster", "hosts")(
                    f'{quote(host)} is not a host; expected one as in "alpha" or "user@10.0.0.2:2222"'
                )
            if hosts.count(host) > 1:
                raise source.at("cluster", "hosts")(f"{quote(host)} is among the hosts twice; a host has one worker")
        if on_hosts and values["workers"] > len(hosts):
            raise _blame(study, source, engine)(
                f"{values['workers']:,} workers need as many hosts, and there are {len(hosts):,}; "
                "name more hosts, or leave `workers` out"
            )
    asked, hosts = study.layers.base.get("workers"), study.layers.base.get("hosts", [])
    if asked and asked < len(hosts):
        raise source.at("params", "workers")(
            f"`workers` is {asked:,}, and there are {len(hosts):,} hosts; leave it out, or sweep it in [grid]"
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


_TOP = {name: TOP[name] for name in ("name", "targets", "repeat")}


@dataclass(frozen=True)
class Overrides:
    """The values that --set gives, by where they apply; the last --set of a key holds."""

    top: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)  # for every engine that knows the key
    by_engine: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_sets(texts: Iterable[str], words: Vocabulary, workloads: Mapping[str, object]) -> Overrides:
    """Every `key=value` text, checked as the study file's own keys are."""
    sets = Overrides()
    for text in texts:
        complain = complaint(text)
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise complain("expected key=value, as in --set learning_rate=0.1")
        _read_set(sets, key.strip(), parse(value), complain, words, workloads)
    return sets


def complaint(text: str) -> Complain:
    """Make errors that begin with the --set they are about."""
    return lambda message: TrainoffError(f"--set {clean(text)}: {message}")


def parse(text: str) -> Any:
    """A value as TOML writes it; a bare word is a text."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text.strip()
    return tables["value"] if tables.keys() == {"value"} else text.strip()


def _read_set(
    sets: Overrides, key: str, value: Any, complain: Complain, words: Vocabulary, workloads: Mapping[str, object]
) -> None:
    if key.startswith("engine."):
        _read_engine_set(sets, key, value, complain, words)
        return
    sweepable = words.sweepable(workloads)
    for target, allowed in ((sets.top, only(_TOP)), (sets.limits, only(LIMITS)), (sets.values, sweepable)):
        if key in allowed:
            target[key] = checked(allowed[key], value, complain)
            return
    if key == "engines":
        raise complain("`engines` cannot be set here; choose among the study's engines with --engine")
    options = [*_TOP, *LIMITS, *sweepable]
    last = key.rpartition(".")[2]
    if last in options:
        raise complain(f"{quote(key)} is not a key that can be set; did you mean {quote(last)}?")
    raise complain(words.unknown(key, "a key that can be set", options))


def _read_engine_set(sets: Overrides, key: str, value: Any, complain: Complain, words: Vocabulary) -> None:
    _, _, rest = key.partition(".")
    engines = {engine.name: engine for engine in words.engines}
    name, _, inner = rest.rpartition(".")
    if not name:
        raise complain("expected engine.NAME.key=value")
    if name not in engines:
        raise complain(f"{quote(name)} is not an engine of the study; {suggest(name, engines, 'they are')}")
    allowed = words.of_engine(engines[name])
    if inner not in allowed:
        raise complain(words.unknown(inner, f"a key of [engine.{name}]", allowed))
    sets.by_engine.setdefault(name, {})[inner] = checked(allowed[inner], value, complain)
