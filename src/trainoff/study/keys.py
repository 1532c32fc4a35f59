"""The keys of a study file with type, range, default and meaning; the keys of a fault; the reading of tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainoff.study.schema import EngineFacts, Installed, InvalidValue, Key, ModelFacts, check, knob_key, show
from trainoff.study.source import MakeError, Source
from trainoff.study.suggestions import quote, suggest, synonym

LAST = -1  # the last node; the first has the driver
FAULT_DEFAULTS: Mapping[str, Any] = {"node": LAST, "at": 0.3}  # of every action
FAULT_FIELDS: Mapping[str, Mapping[str, Any]] = {  # of each action, with their defaults
    "kill-process": {},
    "kill-node": {},
    "pause": {"for_s": 10.0},
    "slow": {"share": 0.25, "for_s": None},
    "cut": {"for_s": 10.0},
    "limit": {"bandwidth_mbit": 10.0, "for_s": None},
    "fill": {},
    "none": {},
}
LAB_FAULTS = ("kill-node", "cut", "limit", "fill")  # actions that need nodes with a network and memory of their own

_SECOND = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?s")
_STEP = re.compile(r"step (\d{1,12})")
_MOMENT = 'a share of the training from 0 to below 1 as in 0.3, a second as in "10 s" or a step as in "step 200"'


@dataclass(frozen=True)
class Moment:
    """The time of a fault: a share of the training, a second of it, or a step; two of them are None."""

    share: float | None = None
    second: float | None = None
    step: int | None = None


def moment(at: Any) -> Moment | None:
    """Return the moment that a value of `at` stands for; None if it is invalid."""
    if isinstance(at, int | float) and not isinstance(at, bool):
        return Moment(share=float(at)) if 0 <= at < 1 else None
    if not isinstance(at, str):
        return None
    if found := _SECOND.fullmatch(at):
        return Moment(second=float(found[1]))
    found = _STEP.fullmatch(at)
    return Moment(step=int(found[1])) if found else None


def _fit_moment(value: Any) -> float | str:
    """Return a moment as records have it: a share, or a normalised text."""
    found = moment(value)
    if found is None:
        raise InvalidValue(f"`at` is {show(value)}; expected {_MOMENT}")
    if found.share is not None:
        return found.share
    if found.second is None:
        return f"step {found.step}"
    return f"{found.second:.6f}".rstrip("0").rstrip(".") + " s"


def _fit_fault(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a fault with its defaults, None for the action `none`; raise InvalidValue for a foreign key."""
    if "action" not in given:
        raise InvalidValue(f"`fault` has no `action`; expected one of {', '.join(FAULT_FIELDS)}")
    action = given["action"]
    fields = {} if action == "none" else {**FAULT_DEFAULTS, **FAULT_FIELDS[action]}
    for name in given:
        if name != "action" and name not in fields:
            has = ", ".join(map(quote, fields)) or "nothing else"
            raise InvalidValue(
                f"{quote(name)} is not a key of the fault {quote(action)}, which has {has}; leave it out"
            )
    return {"action": action, **fields, **given} if fields else None


def _by_name(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}


FAULT = Key(  # injected into a node during the training
    "fault",
    dict,
    fields=_by_name(
        Key("action", str, choices=tuple(FAULT_FIELDS)),
        Key("node", int, LAST, minimum=LAST, maximum=10_000),
        Key("at", object, FAULT_DEFAULTS["at"], fit=_fit_moment),
        Key("for_s", float, above=0, maximum=10**6),  # until the fault is healed
        Key("share", float, 0.25, minimum=0.01, maximum=1),  # of its speed that is left
        Key("bandwidth_mbit", float, above=0, maximum=10**6),  # of its link that is left
    ),
    fit=_fit_fault,
)
STOP = Key(  # early: no better by `tol` for `patience` epochs
    "stop",
    dict,
    fields=_by_name(
        Key("tol", float, 1e-4, minimum=0, maximum=10**6), Key("patience", int, 10, minimum=1, maximum=10**6)
    ),
)
PARAMS = _by_name(
    Key("optimizer", str, "momentum", ("sgd", "momentum", "adam", "l-bfgs")),
    Key("learning_rate", float, 0.05, above=0, maximum=1000),  # the peak, where a schedule varies it
    Key("momentum", float, 0.9, minimum=0, maximum=0.9999),  # for the optimizer `momentum` only
    Key("schedule", str, "one-cycle", ("constant", "one-cycle")),
    Key("batch_size", int, 128, minimum=1, maximum=10**9),
    Key("batch_per", str, "global", ("global", "worker")),  # of all workers together, or of each
    Key("epochs", int, 5, minimum=1, maximum=10**6),
    Key("l2", float, 0.0, minimum=0, maximum=10**6),  # weight of the squared weights in the loss
    Key("train_rows", int, minimum=1, maximum=10**9),  # all of them by default
    Key("snapshot_every", int, minimum=1, maximum=10**12),  # in samples; a third of an epoch by default
    STOP,
    FAULT,
    Key("seed", int, 0, minimum=0, maximum=2**31),  # repetition r is trained with this seed plus r
    Key("mode", str),  # the engine's first by default
    Key("workers", int, 1, minimum=1, maximum=10_000),
)


def params_of(models: Iterable[ModelFacts]) -> dict[str, Key]:
    """Return the keys of [params] for these families of models, whose own keys follow `epochs`."""
    own = {key.name: key for model in models for key in model.keys}
    names = list(PARAMS)
    first = names[: names.index("epochs") + 1]
    return {**{name: PARAMS[name] for name in first}, **own, **PARAMS}


_CORES = Key("cores", float, 1.0, above=0, maximum=1024)  # per worker
_MEMORY = Key("memory_gb", float, above=0, maximum=10**6)  # per worker; not limited by default
_BANDWIDTH = Key("bandwidth_mbit", float, above=0)  # of a lab node's link; not limited by default
_LATENCY = Key("latency_ms", float, above=0, maximum=60_000)
_MACHINE = Key("machine", str)  # a type of machine by its name in the catalogue
NODE = _by_name(*(replace(key, default=None) for key in (_CORES, _MEMORY, _BANDWIDTH, _LATENCY, _MACHINE)))
MACHINE = _by_name(_CORES, _MEMORY, _BANDWIDTH, Key("usd_per_hour", float, minimum=0, maximum=10**6))
_NODES = Key("nodes", list, minimum=1, maximum=1000, item=Key("nodes", dict, fields=NODE))

CLUSTER = _by_name(
    Key("kind", str, "processes", ("processes", "lab", "hosts", "attach")),
    _CORES,
    _MEMORY,
    Key("nodes", int, minimum=1, maximum=1000, several=_NODES),  # of a lab, a worker on each; or a list of unlike ones
    Key("first", dict, fields=NODE),  # how a lab's first node differs, which also has drivers and masters
    _BANDWIDTH,
    _LATENCY,
    _MACHINE,
    Key("scale", float, 1.0, above=0, maximum=1),  # the share of the machine's cores that a node has
    Key("memory_scale", float, above=0, maximum=1),  # the share of its memory; as `scale` by default
    Key("master", str),  # the Spark cluster to attach to: "spark://host:7077", "yarn" or "k8s://https://host:443"
    Key("scheduler", str),  # the Dask cluster to attach to: "tcp://host:8786" or "tls://host:8786"
    Key("head", str),  # the Ray cluster to attach to: "host:6379"
    Key("hosts", list, minimum=1, maximum=10_000, item=Key("hosts", str)),  # one worker on each, as ssh knows them
    Key("python", str),  # on the hosts; the same path as here by default
    Key("here", str),  # this machine's address as the hosts see it; detected by default
    Key("ssh_config", str),  # a configuration file for ssh; the user's own by default
    Key("executor_cores", int, minimum=1, maximum=1024),  # per Spark executor; all of a worker's by default
    Key("spark", dict, free=True),  # any Spark properties
    Key("dask", dict, fields=_by_name(*(Key(name, str) for name in ("ca_file", "cert", "key")))),  # PEM files for tls
)
ADDRESSES = {  # by cluster software: the key for the address of a cluster, and an example
    "spark": ("master", "spark://host:7077"),
    "dask": ("scheduler", "tcp://host:8786"),
    "ray": ("head", "host:6379"),
}
SOFTWARE_KEYS = {  # keys that only engines on a cluster software have
    "executor_cores": "spark",
    "spark": "spark",
    "dask": "dask",
    **{key: software for software, (key, _) in ADDRESSES.items()},
}

HOST_KEYS = ("hosts", "python", "here", "ssh_config")  # keys that need kind = "hosts"

LIMITS = _by_name(
    Key("timeout_s", float, 900.0, above=0, maximum=10**8),  # after which a trial is ended
    Key("stall_s", float, 120.0, above=0, maximum=10**8),  # without progress, after which it is ended
)

TOP = _by_name(
    Key("name", str, named=True),  # the file's name by default
    Key("workload", str),
    Key("engines", list, minimum=1, item=Key("engines", str)),
    Key("targets", list, maximum=100, item=Key("targets", float, above=0, maximum=1)),  # values of the metric
    Key("repeat", int, 1, minimum=1, maximum=1000),  # each time with another seed
)

WORKLOAD = _by_name(
    Key("data", str),  # a path from the study file's folder, or a dataset's name
    Key("about", str, ""),
    Key("model", str),  # its choices are the families of models
    Key("metric", str, "accuracy", ("accuracy", "error", "auc", "log-loss")),
)

WORKER_SIZE_KEYS = ("cores", "memory_gb")
Allowed = Mapping[str, Sequence[Key]]  # a value must fit every key of its name


def only(keys: Mapping[str, Key]) -> dict[str, list[Key]]:
    """Return these keys as the allowed ones."""
    return {name: [key] for name, key in keys.items()}


@dataclass(frozen=True)
class StudySchema:
    """The keys that one study may use, by its engines and by all that are installed."""

    engines: Sequence[EngineFacts]
    installed: Installed

    @cached_property
    def common(self) -> dict[str, Key]:
        """Return the keys of [params] that are no engine's knobs."""
        return params_of(self.installed.models.values())

    def params(self, engines: Iterable[EngineFacts] | None = None) -> Allowed:
        """Return the keys of [params], for the study's engines or others."""
        known = list(self.engines if engines is None else engines)
        modes = tuple(dict.fromkeys(mode for engine in known for mode in engine.modes))
        allowed = {**only(self.common), "mode": [replace(PARAMS["mode"], choices=modes)]}
        for engine in known:
            for name, knob in engine.knobs.items():
                if name not in self.common and name not in CLUSTER:
                    allowed.setdefault(name, []).append(knob_key(name, knob))
        return allowed

    def of_engine(self, engine: EngineFacts) -> Allowed:
        """Return the keys of [engine.NAME]: its parameters and knobs, and the size of its workers."""
        return {**self.params([engine]), **{name: [CLUSTER[name]] for name in WORKER_SIZE_KEYS}}

    def of_workload(self) -> Allowed:
        """Return the keys of [workload.NAME] for a new workload."""
        model = replace(WORKLOAD["model"], choices=tuple(self.installed.models))
        return {**self.params(), **only({**WORKLOAD, "model": model}), "targets": [TOP["targets"]]}

    def sweepable(self, workloads: Iterable[str]) -> Allowed:
        """Return the keys of [grid], [[case]] and --set."""
        workload = replace(TOP["workload"], choices=tuple(workloads))
        return {**self.params(), **only(CLUSTER), "workload": [workload]}

    def unknown(self, name: str, what: str, allowed: Iterable[str]) -> str:
        """Return the error for a key that is not allowed: where it belongs, or the nearest name."""
        names = list(allowed)
        hint = self._where_it_belongs(name) or self._other_name(name, names) or suggest(name, names, "the keys are")
        return f"{quote(name)} is not {what}; {hint}"

    def _where_it_belongs(self, name: str) -> str | None:
        if place := self._table_of(name):
            return f"it belongs {place}"
        for engine in (*self.engines, *self.installed.engines.values()):
            if name in engine.knobs:
                if engine in self.engines:
                    return f"it belongs in [engine.{engine.name}]"
                return f"it is a knob of {quote(engine.name)}, which is not among the study's engines"
        return None

    def _table_of(self, name: str) -> str | None:
        """Return where a key belongs in a study file; None for an unknown one."""
        tables = {"in [params]": self.common, "in [cluster]": CLUSTER, "in [limits]": LIMITS}
        return next((at for at, keys in {**tables, "at the top of the file": TOP}.items() if name in keys), None)

    def _other_name(self, name: str, allowed: Sequence[str]) -> str | None:
        """Return the hint for another program's name of a key that belongs in another table."""
        same = synonym(name)
        if same is None or same in allowed or not (place := self._table_of(same)):
            return None
        return f"did you mean {quote(same)}, which belongs {place}?"


def checked(keys: Sequence[Key], value: Any, make_error: MakeError, hint: str = "") -> Any:
    """Return the value if it fits all keys of its name; else raise an error by `make_error`."""
    try:
        fit, *_ = [check(key, value) for key in keys]
    except InvalidValue as wrong:
        raise make_error(f"{wrong}{hint}") from None
    return fit


_LISTS = "[[32], [64]]"  # several values of a key whose value is itself a list


def table(source: Source, *key_path: str | int) -> dict[str, Any]:
    """Return the table at a path of keys, empty if there is none; raise an error if it is something else."""
    value: Any = source.tables
    for step in key_path:
        if isinstance(value, dict) and step not in value:
            return {}
        value = value[step]
    if not isinstance(value, dict):
        name = ".".join(str(step) for step in key_path)
        raise source.error_at(*key_path)(f"{quote(name)} is {show(value)}; expected a table, as in [{name}]")
    return value


def read_table(source: Source, schema: StudySchema, allowed: Allowed, *key_path: str) -> dict[str, Any]:
    """Return the checked values of a table."""
    values = {}
    for name, value in table(source, *key_path).items():
        make_error = source.error_at(*key_path, name)
        if name not in allowed:
            raise make_error(schema.unknown(name, f"a key of [{'.'.join(key_path)}]", allowed))
        sweep = name in schema.params() and isinstance(value, list) and not allowed[name][0].item
        hint = "; to try several values write them in [grid]" if sweep else ""
        values[name] = checked(allowed[name], value, make_error, hint)
    return values


def read_grid(source: Source, schema: StudySchema, allowed: Allowed) -> dict[str, list[Any]]:
    """Return the lists of values in [grid], by key."""
    grid = {}
    for name, values in table(source, "grid").items():
        make_error = source.error_at("grid", name)
        if name not in allowed:
            raise make_error(schema.unknown(name, "a key that [grid] can vary", allowed))
        takes_list = allowed[name][0].item is not None
        if not isinstance(values, list):
            example = _LISTS if takes_list else "[1, 2]"
            raise make_error(f"{quote(name)} is {show(values)}; expected a list of values, as in {example}")
        if not values:
            raise make_error(f"{quote(name)} is an empty list; expected at least one value")
        hint = f"; list the lists, as in {_LISTS}" if takes_list else ""
        grid[name] = [
            checked(allowed[name], value, source.error_at("grid", name, index), "" if isinstance(value, list) else hint)
            for index, value in enumerate(values)
        ]
    return grid


def read_cases(source: Source, schema: StudySchema, allowed: Allowed) -> list[dict[str, Any]]:
    """Return the [[case]] tables, whose keys vary together; one empty table if there are none."""
    if "case" not in source.tables:
        return [{}]
    cases = source.tables["case"]
    if not isinstance(cases, list) or not cases:
        raise source.error_at("case")(f"`case` is {show(cases)}; expected tables, each headed [[case]]")
    swept, made = table(source, "grid"), []
    for index in range(len(cases)):
        values = {}
        for name, value in table(source, "case", index).items():
            make_error = source.error_at("case", index, name)
            if name not in allowed:
                raise make_error(schema.unknown(name, "a key that [[case]] can vary", allowed))
            if name in swept:
                raise make_error(f"{quote(name)} varies both in [grid] and in [[case]]; keep one")
            values[name] = checked(allowed[name], value, make_error)
        made.append(values)
    return made
