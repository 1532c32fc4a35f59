"""The user's own ssh: how it is called, and what its failures mean in one sentence."""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trainoff.clusters.ssh import facts
from trainoff.clusters.ssh.facts import python_facts
from trainoff.errors import TrainoffError
from trainoff.study.validation import HOST

INSTALL = "apt-get install openssh-client"
CONNECT_S = 10
FACTS_S = 60.0  # how long a host may take to start a Python
ALIVE = (5, 3)  # seconds between two questions whether a host is there, and how many may stay without an answer
_UNREACHABLE = ("resolve hostname", "timed out", "No route to host", "refused", "unreachable", "closed by", "reset by")


@dataclass(frozen=True)
class Ssh:
    """How hosts are reached, and the Python that is found there."""

    python: str
    config: str | None = None

    def command(self, host: str, program: str) -> list[str]:
        """The words that run a program of the shell's on a host. Nothing is ever asked of the user."""
        found = HOST.fullmatch(host)
        name, port = (found["name"].strip("[]"), found["port"]) if found else (host, None)
        target = f"{found['user']}@{name}" if found and found["user"] else name
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT_S,
            "AddressFamily": "inet",  # several engines know no other addresses
            "RemoteCommand": "none",
            "ServerAliveInterval": ALIVE[0],
            "ServerAliveCountMax": ALIVE[1],
            "ClearAllForwardings": "yes",
            "ControlMaster": "no",  # another's connection would not notice that the host is gone
            "ControlPath": "none",
            "LogLevel": "ERROR",
        }
        words = ["ssh", "-T", "-e", "none", *(["-F", self.config] if self.config else [])]
        words += [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return [*words, *(["-p", port] if port else []), "--", target, program]

    def agent(self, asked: Mapping[str, Any]) -> str:
        """The program that tells the facts of a host and then is its guard, for any shell."""
        source = base64.b64encode(Path(facts.__file__).read_bytes()).decode()
        run = f"import base64; exec(base64.b64decode('{source}'))"
        return f"exec {shlex.quote(self.python)} -c {shlex.quote(run)} {shlex.quote(json.dumps(asked))}"

    def explain(self, host: str, code: int | None, said: str) -> str:
        """Why a host could not be used, and what to do, from what ssh or the shell there said."""
        last = (said.strip().splitlines() or ["it said nothing"])[-1].strip()
        if code == -signal.SIGKILL:
            return f"{host} did not start {self.python} within {FACTS_S:g} s; how does it do with ssh {host}?"
        if code in (126, 127):
            return (
                f"{host} has no Python at {self.python}; install there what is installed here, "
                'or name its interpreter, as in python = "/path/to/python"'
            )
        if "Host key verification failed" in said:
            return f"{host} is not a known host; connect once by hand (ssh {host}) and see that it is the right one"
        if "Permission denied" in said or "Too many authentication failures" in said:
            return f"{host} does not accept your key ({last}); see that ssh {host} works without a password"
        if code == 255 and any(word in said for word in _UNREACHABLE):
            return f"{host} cannot be reached ({last}); is it running, and does ssh {host} work from here?"
        return f"{host} could not be used: ssh ended with code {code} ({last})"


COMMON = ("numpy", "psutil")  # what every process of trainoff's needs


def distributions(modules: Iterable[str]) -> list[str]:
    """The packages that bring some modules."""
    known: Mapping[str, Sequence[str]] = metadata.packages_distributions()
    return sorted({name for module in (*COMMON, *modules) for name in known.get(module, [])})


def examine(host: str, python: str, there: Mapping[str, Any]) -> None:
    """Compare the facts of a host with those of this machine; raises the first difference."""
    here = python_facts(there["packages"])
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
        from trainoff.clusters.java import find_java, home

        java = find_java()
        found |= {str(home()): ready["spark_home"]} | ({str(java.home): ready["java_home"]} if java else {})
    return found


def moved(text: str, places: Mapping[str, str]) -> str:
    """A word of a command, or a value of its environment, as it must read on a host."""
    for here, there in places.items():
        if text == here or text.startswith(f"{here}/"):
            return there + text[len(here) :]
    return text
