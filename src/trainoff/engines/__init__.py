"""Training systems behind one contract: a file or a folder each, third parties' included through entry points."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import re
from functools import cache
from importlib import metadata
from pathlib import Path

from trainoff.engines.contract import Broken, Engine, Job, Knob, Missing, Refused, Watch
from trainoff.errors import TrainoffError
from trainoff.study import Catalogue, EngineFacts

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
    """Look again for what is installed, when it is next asked for."""
    _found.cache_clear()


def names() -> list[str]:
    """The names of all engines that are installed as adapters, ready to run or not."""
    return sorted(_found())


def get(name: str) -> Engine:
    """The engine of that name; its framework is not imported yet."""
    if name not in _found():
        close = difflib.get_close_matches(name, names(), 1)
        hint = f"did you mean `{close[0]}`?" if close else "`trainoff engines` lists them"
        raise TrainoffError(f"`{name}` is not an engine; {hint}")
    try:
        engine: Engine = _found()[name].load()()
    except Exception as error:
        raise TrainoffError(f"the engine `{name}` cannot be loaded: {type(error).__name__}: {error}") from error
    return engine


def broken_or(name: str) -> Engine:
    """The engine; if its adapter cannot be loaded, one that says so when it is asked what it lacks.

    A broken plug-in must not stand in the way of the engines that work.
    """
    try:
        return get(name)
    except TrainoffError as error:
        return Broken(name, str(error))


def facts() -> Catalogue:
    """Return what a study must know of the engines and model families to be checked."""
    from trainoff.models import FAMILIES

    found = {name: broken_or(name) for name in names()}
    engines = {
        name: EngineFacts(name, engine.modes, engine.knobs, engine.cluster, engine.settle)
        for name, engine in found.items()
    }
    return Catalogue(engines, FAMILIES)


def version_of(engine: Engine) -> str:
    """The engine's version; `unknown` where it cannot say."""
    try:
        return str(engine.version())
    except Exception:  # an engine is somebody else's code
        return "unknown"


def source_hash(engine: Engine) -> str:
    """A hash of the adapter's source and of what it builds on, so that a changed one never passes for the old."""
    left = [file for kind in type(engine).__mro__[:-1] for file in _files(kind)]
    known = set(left)
    while left:
        new = _named_in(left.pop()) - known
        known |= new
        left += new
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(known))).hexdigest()[:12]


@cache
def _named_in(file: Path) -> set[Path]:
    """The files of this folder that another one names: what it imports, at once or later, and programs it starts."""
    found = set()
    for name in _NAME.findall(file.read_text()):
        place = Path(__file__).parent.joinpath(*name.split("."))
        found |= {path for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()}
    return found


def _files(kind: type) -> list[Path]:
    """The source of a class: the whole folder, if it has one of its own."""
    source = Path(inspect.getfile(kind))
    folder = source.parent
    own_folder = folder != Path(__file__).parent and (folder / "__init__.py").exists()
    return sorted(folder.glob("*.py")) if own_folder else [source]
