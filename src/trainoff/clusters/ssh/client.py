"""The user's ssh: its command line, its errors explained, and the comparison of a host with this machine."""

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
ALIVE = (5, 3)  # seconds between two keep-alive messages, and how many may remain without a reply
_UNREACHABLE = ("resolve hostname", "timed out", "No route to host", "refused", "unreachable", "closed by", "reset by")


@dataclass(frozen=True)
class Ssh:
    """How hosts are reached, and their Python."""

    python: str
    config: str | None = None

    def command(self, host: str, program: str) -> list[str]:
        """Return the command that runs a shell command on a host, without asking the user for anything."""
        found = HOST.fullmatch(host)
        name, port = (found["name"].strip("[]"), found["port"]) if found else (host, None)
        target = f"{found['user']}@{name}" if found and found["user"] else name
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT_S,
            "AddressFamily": "inet",  # several engines support IPv4 only
            "RemoteCommand": "none",
            "ServerAliveInterval": ALIVE[0],
            "ServerAliveCountMax": ALIVE[1],
            "ClearAllForwardings": "yes",
            "ControlMaster": "no",  # a shared connection would not notice that the host is lost
            "ControlPath": "none",
            "LogLevel": "ERROR",
        }
        argv = ["ssh", "-T", "-e", "none", *(["-F", self.config] if self.config else [])]
        argv += [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
        return [*argv, *(["-p", port] if port else []), "--", target, program]

    def agent(self, request: Mapping[str, Any]) -> str:
        """Return the shell command that prints the facts of a host and then runs its agent."""
        source = base64.b64encode(Path(facts.__file__).read_bytes()).decode()
        run = f"import base64; exec(base64.b64decode('{source}'))"
        return f"exec {shlex.quote(self.python)} -c {shlex.quote(run)} {shlex.quote(json.dumps(request))}"

    def explain(self, host: str, code: int | None, output: str) -> str:
        """Return why a host could not be used and what to do, given the output of ssh or of the shell there."""
        last = (output.strip().splitlines() or ["no output"])[-1].strip()
        if code == -signal.SIGKILL:
            return f"{host} did not start {self.python} within {FACTS_S:g} s; try ssh {host} by hand"
        if code in (126, 127):
            return (
                f"{host} has no Python at {self.python}; install there what is installed here, "
                'or name its interpreter, as in python = "/path/to/python"'
            )
        if "Host key verification failed" in output:
            return f"{host} is not a known host; connect once by hand (ssh {host}) and check that it is the right one"
        if "Permission denied" in output or "Too many authentication failures" in output:
            return f"{host} does not accept your key ({last}); check that ssh {host} works without a password"
        if code == 255 and any(part in output for part in _UNREACHABLE):
            return f"{host} cannot be reached ({last}); is it running, and does ssh {host} work from here?"
        return f"{host} could not be used: ssh ended with code {code} ({last})"


COMMON = ("numpy", "psutil")  # required by every process of trainoff


def distributions(modules: Iterable[str]) -> list[str]:
    """Return the packages that provide some modules."""
    known: Mapping[str, Sequence[str]] = metadata.packages_distributions()
    return sorted({name for module in (*COMMON, *modules) for name in known.get(module, [])})


def compare_facts(host: str, python: str, there: Mapping[str, Any]) -> None:
    """Compare the facts of a host with those of this machine; raise TrainoffError for the first difference."""
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


def remote_paths(ready: Mapping[str, Any], python: str) -> dict[str, str]:
    """Return the paths that differ on a host, by the path on this machine."""
    found = {sys.executable: python, f"/proc/{os.getpid()}/cwd": f"/proc/{ready['pid']}/cwd"}
    if ready.get("java_home"):
        from trainoff.clusters.java import find_java, home

        java = find_java()
        found |= {str(home()): ready["spark_home"]} | ({str(java.home): ready["java_home"]} if java else {})
    return found


def remote_path(text: str, paths: Mapping[str, str]) -> str:
    """Return an argument or a value of the environment as it must be on a host."""
    for here, there in paths.items():
        if text == here or text.startswith(f"{here}/"):
            return there + text[len(here) :]
    return text
