"""Training systems behind one contract, each a module or package; third parties' are found by entry points."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import re
from functools import cache
from importlib import metadata
from pathlib import Path

from trainoff.engines.contract import Engine, Job, Knob, Missing, Refused, Watch
from trainoff.errors import TrainoffError
from trainoff.study import EngineFacts, Installed

_NAME = re.compile(r"\btrainoff\.engines\.([\w.]+)")

__all__ = [
    "Engine",
    "Job",
    "Knob",
    "Missing",
    "Refused",
    "Watch",
    "broken_or",
    "facts",
    "forget",
    "get",
    "names",
    "source_hash",
    "version_of",
]

GROUP = "trainoff.engines"


@cache
def _found() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def forget() -> None:
    """Forget which adapters are installed, so that the next call looks again."""
    _found.cache_clear()


def names() -> list[str]:
    """Return the names of all installed adapters, whether their engines can run or not."""
    return sorted(_found())


def get(name: str) -> Engine:
    """Return the engine of that name, without importing its framework."""
    if name not in _found():
        close = difflib.get_close_matches(name, names(), 1)
        hint = f"did you mean `{close[0]}`?" if close else "`trainoff engines` lists them"
        raise TrainoffError(f"`{name}` is not an engine; {hint}")
    try:
        engine: Engine = _found()[name].load()()
    except Exception as error:
        raise TrainoffError(f"the engine `{name}` cannot be loaded: {type(error).__name__}: {error}") from error
    return engine


class Broken(Engine):
    """An engine whose adapter cannot be loaded, which must not keep others from running."""

    def __init__(self, name: str, error: str) -> None:
        self.name = name  # type: ignore[misc]  # a class attribute everywhere else
        self._error = error

    def missing(self) -> list[Missing]:
        return [Missing("an adapter that can be loaded", self._error)]


def broken_or(name: str) -> Engine:
    """Return the engine, or a `Broken` one if its adapter cannot be loaded."""
    try:
        return get(name)
    except TrainoffError as error:
        return Broken(name, str(error))


def facts() -> Installed:
    """Return what a study must know of the engines and model families to be checked."""
    from trainoff.models import FAMILIES

    found = {name: broken_or(name) for name in names()}
    engines = {
        name: EngineFacts(name, engine.modes, engine.knobs, engine.cluster, engine.settle)
        for name, engine in found.items()
    }
    return Installed(engines, FAMILIES)


def version_of(engine: Engine) -> str:
    """Return the engine's version, or `unknown` if the adapter fails."""
    try:
        return str(engine.version())
    except Exception:  # a plug-in may raise anything
        return "unknown"


def source_hash(engine: Engine) -> str:
    """Return a hash of the adapter's source and of the modules it uses, which changes with any of them."""
    queue = [file for kind in type(engine).__mro__[:-1] for file in _files(kind)]
    known = set(queue)
    while queue:
        new = _named_in(queue.pop()) - known
        known |= new
        queue += new
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(known))).hexdigest()[:12]


@cache
def _named_in(file: Path) -> set[Path]:
    """Return the files of this folder that a file names: what it imports, and the programs it starts."""
    found = set()
    for name in _NAME.findall(file.read_text()):
        place = Path(__file__).parent.joinpath(*name.split("."))
        found |= {path for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()}
    return found


def _files(kind: type) -> list[Path]:
    """Return the source files of a class: the whole package, if its module is one."""
    source = Path(inspect.getfile(kind))
    folder = source.parent
    is_package = folder != Path(__file__).parent and (folder / "__init__.py").exists()
    return sorted(folder.glob("*.py")) if is_package else [source]
