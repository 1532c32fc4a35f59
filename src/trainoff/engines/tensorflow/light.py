"""Parts of TensorFlow, for processes that need but a few of them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types


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
