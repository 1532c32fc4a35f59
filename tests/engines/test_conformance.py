"""Conformance tests: every engine that trains in one process, with every model it has, against the reference.

`SUBJECTS` lists the engines. A test runs once for each of them, and checks the steps, snapshots, losses, predictions,
stopping and divergence that the contract asks for. What is particular to an engine is tested in its own module, with
mistakes put into it on purpose. The certificates of trials compare the distributed engines with the same reference.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pytest

from helpers.training import OPTIMIZERS, clicks, make_job, pictures, train, worst_distance
from trainoff import engines
from trainoff.engines import Engine, Job
from trainoff.models import ACTIVATIONS, SCHEDULES, fingerprint, logits, loss_and_gradient

EXACT = 1e-3
MNIST = {"mlp": (800,), "cnn": (64,)}  # hidden layers at the size of MNIST
SOAK = pytest.mark.soak
SLOW_TO_COMPILE = ("jax", "cnn")
RATES = {"logreg": 1.0}  # instead of the usual learning rate of the optimizer


@dataclass(frozen=True)
class Subject:
    """An engine and its parameters."""

    name: str
    kinds: tuple[str, ...]  # the models whose steps are exact
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        return engines.get(self.name)

    def job(self, kind: str = "mlp", **settings: Any) -> Job:
        given = {"optimizer": "sgd", "learning_rate": RATES[kind]} if kind in RATES else {}
        return make_job(kind=kind, **{**given, **self.params, **settings})

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for value in self.params.values() if value == "cuda")])


ON_CPU = {"device": "cpu", "precision": "float32"}
SUBJECTS = [
    Subject("numpy", ("mlp", "logreg")),
    Subject("sklearn", ("mlp",)),
    Subject("tensorflow", ("mlp", "cnn", "logreg")),
    Subject("torch", ("mlp", "cnn", "logreg"), ON_CPU),
    Subject("jax", ("mlp", "cnn")),
]


def has_gpu() -> bool:
    """Return whether torch finds a GPU."""
    import torch

    return bool(torch.cuda.is_available())


if has_gpu():
    SUBJECTS.append(Subject("torch", ("mlp", "cnn", "logreg"), {**ON_CPU, "device": "cuda"}))

every = pytest.mark.parametrize("subject", SUBJECTS, ids=str)


def models(*, networks: bool = False, quick: bool = False) -> Any:
    """Parametrise by every engine and model, or by networks alone; `quick` leaves slow compilations to the soak."""

    def marks(subject: Subject, kind: str) -> Any:
        return SOAK if quick and (subject.name, kind) == SLOW_TO_COMPILE else ()

    return pytest.mark.parametrize(
        ("subject", "kind"),
        [
            pytest.param(each, kind, id=f"{each}-{kind}", marks=marks(each, kind))
            for each in SUBJECTS
            for kind in each.kinds
            if kind in MNIST or not networks
        ],
    )


def cases() -> Iterator[Any]:
    """Yield every engine and network with every optimizer, schedule, activation and l2.

    Most of them only in the soak. The rest contains every pair of values for perceptrons, and every value for
    convolutions, which take long to compile.
    """
    choices = [list(OPTIMIZERS), SCHEDULES, ACTIVATIONS, [0.0, 1e-3]]
    for subject, indices in product(SUBJECTS, product(*(range(len(each)) for each in choices))):
        chosen = [each[index] for each, index in zip(choices, indices, strict=True)]
        optimizer, schedule, activation, l2 = indices
        pairs = schedule == ((optimizer + activation) % 3 == 0) and l2 == ((optimizer - activation) % 3 == 1)
        each_once = optimizer == activation and schedule == optimizer % 2 and l2 == optimizer // 2
        for kind in (each for each in subject.kinds if each in MNIST):
            marks = () if (pairs if kind == "mlp" else each_once) else SOAK
            yield pytest.param(subject, kind, *chosen, id="-".join(map(str, [subject, kind, *chosen])), marks=marks)


@pytest.mark.parametrize(("subject", "kind", "optimizer", "schedule", "activation", "l2"), list(cases()))
def test_networks_are_exact(
    subject: Subject, kind: str, optimizer: str, schedule: str, activation: str, l2: float
) -> None:
    job = subject.job(kind, optimizer=optimizer, schedule=schedule, activation=activation, l2=l2)
    assert worst_distance(job, train(subject.engine, job)) <= EXACT


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("subject", [each for each in SUBJECTS if "logreg" in each.kinds], ids=str)
def test_logistic_regression_is_exact(subject: Subject, schedule: str) -> None:
    job = subject.job("logreg", schedule=schedule)
    assert worst_distance(job, train(subject.engine, job)) <= EXACT


@pytest.mark.parametrize(
    ("subject", "kind", "hidden"),
    [
        pytest.param(
            *(subject, kind, hidden),
            id=f"{subject}-{kind}-{hidden}",
            marks=SOAK if (subject.name, kind) == SLOW_TO_COMPILE else (),
        )
        for subject in SUBJECTS
        for kind in subject.kinds
        if kind in MNIST
        for hidden in ((), (24, 16), (24, 16, 12))
    ],
)
def test_it_is_exact_with_any_number_of_layers(subject: Subject, kind: str, hidden: tuple[int, ...]) -> None:
    job = subject.job(kind, hidden=hidden)
    assert worst_distance(job, train(subject.engine, job)) <= EXACT


@pytest.mark.parametrize(
    ("subject", "kind", "optimizer"),
    [
        pytest.param(
            *(subject, kind, optimizer),
            id=f"{subject}-{kind}-{optimizer}",
            marks=() if optimizer == "adam" and (subject.name, kind) != SLOW_TO_COMPILE else SOAK,
        )
        for subject in SUBJECTS
        for kind in subject.kinds
        if kind in MNIST
        for optimizer in OPTIMIZERS
    ],
)
def test_it_is_exact_at_the_size_of_mnist(subject: Subject, kind: str, optimizer: str) -> None:
    job = subject.job(kind, data=pictures(2000, 784), hidden=MNIST[kind], batch_size=128, epochs=2, optimizer=optimizer)
    assert worst_distance(job, train(subject.engine, job)) <= EXACT


@every
def test_a_batch_larger_than_the_data_is_the_whole_data(subject: Subject) -> None:
    job = subject.job(batch_size=1000, epochs=20)
    assert worst_distance(job, train(subject.engine, job)) <= EXACT


@models(quick=True)
def test_snapshots_are_float32_copies_and_the_job_is_unchanged(subject: Subject, kind: str) -> None:
    job = subject.job(kind)
    before = fingerprint(job.weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snapshots = train(subject.engine, job).snapshots
    # 330 rows make eleven batches, the last of ten rows; step 20 is the ninth of the second epoch.
    assert [(step, seen) for step, seen, _ in snapshots] == [(1, 32), (20, 330 + 9 * 32), (33, 990)]
    assert {part.dtype for _, _, weights in snapshots for part in weights} == {np.dtype(np.float32)}
    assert not np.array_equal(snapshots[1][2][0], snapshots[2][2][0])
    assert fingerprint(job.weights) == before


@models(quick=True)
def test_the_loss_is_of_the_batch_before_the_step_and_includes_l2(subject: Subject, kind: str) -> None:
    stop = {"tol": 0.0, "patience": 1000}  # on a GPU, losses are read only if the training may stop by them
    job = subject.job(kind, l2=0.0 if kind == "logreg" else 0.01, stop=stop)
    _, rows = next(job.order.batches())
    expected, _ = loss_and_gradient(job.model, job.weights, job.data.x_train[rows], job.data.y_train[rows])
    assert train(subject.engine, job).losses[0] == pytest.approx(expected, rel=1e-5)


@every
def test_it_stops_on_request_and_takes_a_last_snapshot(subject: Subject) -> None:
    watch = train(subject.engine, subject.job(), stop_at=5)
    assert [step for step, _, _ in watch.snapshots] == [1, 5]


@models()
def test_it_trains_and_predicts_like_the_reference(subject: Subject, kind: str) -> None:
    data = clicks(2000) if kind == "logreg" else pictures(2000)
    job = subject.job(kind, data=data, epochs=5)
    engine = subject.engine
    watch = train(engine, job)
    found = engine.predict(data.x_test)  # more rows than it predicts at a time
    engine.close()
    assert found.dtype == np.int64
    assert len(np.unique(found)) == data.classes
    assert kind == "logreg" or np.mean(found == data.y_test) > 0.9
    expected = logits(job.model, watch.snapshots[-1][2], data.x_test).argmax(axis=1)
    assert np.mean(found != expected) <= 0.001  # rounding may decide a tie


@models(networks=True, quick=True)
def test_divergence_shows_in_the_losses_or_the_weights(subject: Subject, kind: str) -> None:
    watch = train(subject.engine, subject.job(kind, learning_rate=1e38, schedule="constant", epochs=9))
    last = np.concatenate([part.ravel() for part in watch.snapshots[-1][2]])
    assert not np.isfinite([*np.array(watch.losses, float), *last]).all()


@pytest.mark.parametrize("name", ["tensorflow", "torch", "jax"])
def test_importing_the_adapter_imports_neither_its_framework_nor_numpy(name: str) -> None:
    code = f"import sys, trainoff.engines.{name}; print({{{name!r}, 'numpy'}} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


@every
def test_a_missing_module_is_reported_with_the_command_that_installs_it(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(subject.engine), "modules", ("no_such_module",))
    (missing,) = subject.engine.missing()
    extra = "numpy" if subject.name == "numpy" else f"'trainoff[{subject.name}]'"
    assert str(missing) == f"needs the Python module no_such_module; pip install {extra}"
