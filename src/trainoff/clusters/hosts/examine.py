"""Whether a host can take part: the same Python, the same trainoff, the same packages, and Java where it is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from trainoff.clusters.ssh.facts import facts
from trainoff.errors import TrainoffError

COMMON = ("numpy", "psutil")  # what every process of trainoff's needs


def distributions(modules: Iterable[str]) -> list[str]:
    """The packages that bring some modules."""
    known: Mapping[str, Sequence[str]] = metadata.packages_distributions()
    return sorted({name for module in (*COMMON, *modules) for name in known.get(module, [])})


def examine(host: str, python: str, there: Mapping[str, Any]) -> None:
    """Compare the facts of a host with those of this machine; raises the first difference."""
    here = facts(there["packages"])
    if there["python"] != here["python"]:
        raise TrainoffError(
            f"{host} has Python {there['python']} at {python}, and here it is {here['python']}; "
            f'name one that fits, as in python = "/path/to/python{here["python"]}"'
        )
    if there["trainoff"] is None:
        raise TrainoffError(f"{host} has no trainoff for {python}; install there what is installed here")
    if there["trainoff"] != here["trainoff"]:
        raise TrainoffError(f"{host} has another trainoff than this machine; install the same version on both")
    for package, version in here["packages"].items():
        if there["packages"][package] != version:
            other = there["packages"][package]
            has = f"has {package} {other}" if other else f"lacks {package}"
            raise TrainoffError(f"{host} {has}, and here is {version}; pip install {package}=={version} there")


def paths() -> list[str]:
    """Where Python looks for modules besides its own places, because somebody told it so."""
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def places(ready: Mapping[str, Any], python: str) -> dict[str, str]:
    """What lies elsewhere on a host: by its place here, its place there."""
    found = {sys.executable: python, f"/proc/{os.getpid()}/cwd": f"/proc/{ready['pid']}/cwd"}
    if ready.get("java_home"):
        from trainoff.clusters.java import find_java
        from trainoff.clusters.shared_classes import home

        java = find_java()
        found |= {str(home()): ready["spark_home"]} | ({str(java.home): ready["java_home"]} if java else {})
    return found


def moved(text: str, places: Mapping[str, str]) -> str:
    """A word of a command, or a value of its environment, as it must read on a host."""
    for here, there in places.items():
        if text == here or text.startswith(f"{here}/"):
            return there + text[len(here) :]
    return text
