"""The registry: a family that is added there is trained by the engines and known to studies without more ado."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from helpers.training import distances, make_job, train
from trainoff import engines
from trainoff.errors import TrainoffError
from trainoff.models import FAMILIES, DataShape, Mlp, NamedWeights, initial_weights
from trainoff.models.network import ACTIVATION, HIDDEN
from trainoff.study import read
from trainoff.study.schema import Key

EXACT = 1e-3
PICTURES = DataShape("pictures", 64, 10, (8, 8))


@dataclass(frozen=True)
class Funnel(Mlp):
    """A perceptron whose layers halve from the first to the last."""

    kind: ClassVar[str] = "funnel"
    keys: ClassVar[tuple[Key, ...]] = (HIDDEN, Key("depth", int, 3), ACTIVATION)

    @classmethod
    def build(cls, params: Mapping[str, Any], data: DataShape) -> Self:
        hidden = [params["hidden"][0] // 2**number for number in range(params["depth"])]
        return cls((data.features, *hidden, data.classes), params["activation"], params["l2"])


@pytest.fixture
def funnel(monkeypatch: pytest.MonkeyPatch) -> Funnel:
    monkeypatch.setitem(FAMILIES, "funnel", Funnel)
    return Funnel.build({"hidden": [32], "depth": 3, "activation": "tanh", "l2": 0.01}, PICTURES)


@pytest.mark.parametrize("engine", ["numpy", "sklearn", "tensorflow", "torch", "jax"])
def test_a_new_family_of_layers_is_trained_without_touching_an_engine(engine: str, funnel: Funnel) -> None:
    adapter = engines.get(engine)
    if adapter.missing():
        pytest.skip(f"missing here: {engine}")
    knobs = {name: knob.default for name, knob in adapter.knobs.items()}
    job = replace(make_job(l2=0.01, **knobs), model=funnel, weights=initial_weights(funnel, 1))
    assert "funnel" in adapter.models
    assert max(distances(job, train(adapter, job)).values()) <= EXACT


def test_a_study_knows_the_keys_of_a_new_family(funnel: Funnel, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    text = 'engines = ["numpy"]\n[workload.mine]\ndata = "digits"\nmodel = "{}"\n[params]\ndepth = 2\n'
    path.write_text(text.format("funnel"))
    (trial,) = read(path, engines.facts()).trials()
    assert (trial.model, trial.params["depth"], "kernel" in trial.params) == ("funnel", 2, False)
    path.write_text(text.format("funel"))
    with pytest.raises(TrainoffError, match="expected one of mlp, cnn, logreg, funnel; did you mean `funnel`"):
        read(path, engines.facts())


def test_weights_are_a_list_whose_arrays_have_names(funnel: Funnel) -> None:
    weights = initial_weights(funnel, 1)
    assert isinstance(weights, list)
    assert [name for name, _ in weights.items()][:3] == ["dense1.weight", "dense1.bias", "dense2.weight"]
    assert weights["dense2.weight"] is weights[2]
    assert weights[:2] == [weights[0], weights[1]]
    with pytest.raises(ValueError, match="the model has 8 parameters, got 2 arrays"):
        NamedWeights(weights.names, weights[:2])
