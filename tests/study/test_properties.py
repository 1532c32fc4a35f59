"""Property tests: any study file gives a study with valid trials or a one-line error, and no other exception."""

import json
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.studies import ENGINES, FULL, INSTALLED, TEXT, key_paths
from trainoff.errors import TrainoffError
from trainoff.models import FAMILIES
from trainoff.study import MOST_TRIALS, Trial, read, workloads
from trainoff.study.keys import params_of
from trainoff.study.source import KeyPath, TomlLines

OWN = """
engines = ["torch", "numpy"]
[workload.deep]
data = "mnist"
targets = [0.9]
[grid]
"learning_rate" = [0.1, 1]
mode = ["sync", 'async']
[[case]]
cores = 1
workers = 2
[[case]]
cores = 2.5
workers = 1
hidden = [4, 4]
[engine.torch]
tau = 3
"""
NAMES = [
    *params_of(FAMILIES.values()),
    *ENGINES,
    *workloads(),
    "workload",
    "case",
    "grid",
    "kind",
    "cores",
    "tau",
    "name",
    "lab",
    "stop",
]

scalars = (
    st.integers(-3, 70_000)
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.sampled_from(NAMES)
    | st.text(max_size=8)
    | st.dates()
)
keys = st.sampled_from(NAMES) | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
documents = st.dictionaries(keys, values, max_size=6)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("property") / "my.toml"


def check(path: Path, raw: bytes, overrides: tuple[str, ...] = ()) -> None:
    """Read a study file and check that its trials are valid, or that the error is one line with its place."""
    path.write_bytes(raw)
    try:
        study = read(path, INSTALLED, overrides=overrides)
    except TrainoffError as error:
        sentence = str(error)
        assert len(sentence.splitlines()) == 1
        assert sentence.startswith((str(path), "--set "))
        assert sentence.rpartition(": ")[2].strip()
        return
    trials = study.trials()
    assert 0 < len(trials) <= MOST_TRIALS
    for trial in trials:
        check_trial(trial)
    assert len({trial.id() for trial in trials}) == len(trials)


def check_trial(trial: Trial) -> None:
    engine = ENGINES[trial.engine]
    assert trial.workers >= 1
    assert trial.workers == 1 or engine.distributed
    assert trial.seed >= 1
    assert trial.cores > 0
    assert trial.params["batch_size"] >= (trial.workers if trial.mode == "sync" else 1)
    assert set(engine.knobs) <= set(trial.params)
    assert Trial.from_json(json.loads(json.dumps(trial.to_json(), allow_nan=False))) == trial


def dump(value: Any) -> str:
    """Return a value as inline TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump(key)} = {dump(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else str(value)


def lay_out(document: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the lines of a document, tables under their headers, each with the key path that it introduces."""
    for key, value in document.items():
        if not isinstance(value, dict):
            yield (key,), f"{dump(key)} = {dump(value)}"
    for key, table in document.items():
        if isinstance(table, dict):
            yield (key,), f"[{dump(key)}]"
            for name, inner in table.items():
                yield (key, name), f"{dump(name)} = {dump(inner)}"


def text_of(document: dict[str, Any]) -> bytes:
    return "\n".join(line for _, line in lay_out(document)).encode()


@st.composite
def changed_documents(draw: st.DrawFn) -> bytes:
    """A valid study with a few of its values replaced, removed or added."""
    document: Any = deepcopy(tomllib.loads(draw(st.sampled_from([FULL, OWN]))))
    for _ in range(draw(st.integers(1, 3))):
        *around, last = draw(st.sampled_from(key_paths(document) or [("name",)]))
        place = document
        for step in around:
            place = place[step]
        change = draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "remove" and around:
            del place[last]
        elif change == "add" and isinstance(place, dict):
            place[draw(keys)] = draw(values)
        else:
            place[last] = draw(values)
    return text_of(document)


@st.composite
def changed_texts(draw: st.DrawFn) -> bytes:
    """A valid study file with a few typing errors."""
    text = draw(st.sampled_from([FULL, OWN, TEXT]))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        insert = draw(st.sampled_from(["", "[", "]", "=", "\n", '"', "'''", "#", "-", "0", ".", text[start:end] * 2]))
        text = text[:start] + insert + text[end:]
    return text.encode()


@settings(max_examples=250)
@given(raw=changed_documents())
def test_a_study_with_changed_values(path: Path, raw: bytes) -> None:
    check(path, raw)


@settings(max_examples=300)
@given(raw=changed_texts())
def test_a_study_with_typing_errors(path: Path, raw: bytes) -> None:
    check(path, raw)


@settings(max_examples=150)
@given(document=documents)
def test_any_toml(path: Path, document: dict[str, Any]) -> None:
    check(path, text_of(document))


@settings(max_examples=100)
@given(raw=st.binary(max_size=60))
def test_any_bytes(path: Path, raw: bytes) -> None:
    check(path, raw)


setting = st.builds(
    "{}={}".format, keys | st.sampled_from(["engine.torch.tau", "engine.numpy.epochs"]), values.map(dump)
)


@settings(max_examples=200)
@given(overrides=st.lists(setting | st.text(max_size=10), min_size=1, max_size=2))
def test_any_set(path: Path, overrides: list[str]) -> None:
    check(path, OWN.encode(), tuple(overrides))


@settings(max_examples=200)
@given(document=documents)
def test_every_key_is_found_on_its_line(document: dict[str, Any]) -> None:
    laid_out = list(lay_out(document))
    lines = TomlLines("\n".join(line for _, line in laid_out))
    assert [lines.line(key_path) for key_path, _ in laid_out] == list(range(1, len(laid_out) + 1))
    assert [key_path for key_path in key_paths(document) if key_path not in lines] == []
