"""What a study must know of an engine to be checked: plain values, so that no engine is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol


class KnobFacts(Protocol):
    """What a study must know of an engine's knob; `Knob` of the engine contract fits."""

    @property
    def kind(self) -> type: ...
    @property
    def default(self) -> Any: ...
    @property
    def about(self) -> str: ...
    @property
    def choices(self) -> tuple[Any, ...]: ...
    @property
    def minimum(self) -> float | None: ...


@dataclass(frozen=True)
class EngineFacts:
    """An engine's name, the models and modes it has (the first mode is the default), and its own knobs."""

    name: str
    models: AbstractSet[str] = frozenset({"mlp"})
    modes: tuple[str, ...] = ("single",)
    knobs: Mapping[str, KnobFacts] = field(default_factory=dict)
    cluster: str | None = None  # the cluster software that it runs on
    settle: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values  # what the engine really uses

    @property
    def distributed(self) -> bool:
        """Whether the engine can spread one training over several workers."""
        return self.modes != ("single",)
