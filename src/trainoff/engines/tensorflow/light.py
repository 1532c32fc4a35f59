"""TensorFlow without what it need not bring along: parts of it, or all of it but its neighbours."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

NEIGHBOURS = ("jax", "sklearn")  # which TensorFlow loads where they are installed, for a converter and for Keras


@contextmanager
def without_neighbours() -> Iterator[None]:
    """While this lasts, TensorFlow does not find other frameworks, and loads in two thirds of the time.

    It makes no use of them here, and should not take longer because they are compared with it.
    """
    hidden = [name for name in NEIGHBOURS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: Python will not find them
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def light_tensorflow() -> None:
    """Let TensorFlow's modules be imported one by one, without all that `import tensorflow` brings along.

    For processes that need but a few of them; nothing changes where it is loaded already.
    """
    if "tensorflow" in sys.modules:
        return
    found = importlib.util.find_spec("tensorflow")
    if not found or not found.submodule_search_locations:
        raise ImportError("TensorFlow is not installed")
    package = types.ModuleType("tensorflow")
    package.__path__ = list(found.submodule_search_locations)
    package.__spec__ = found
    sys.modules["tensorflow"] = package
    try:
        importlib.import_module("tensorflow.python.training.server_lib")
    except ImportError:  # another TensorFlow, laid out in another way
        for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
            del sys.modules[name]
