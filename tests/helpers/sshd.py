"""Two emulated machines, each with a real sshd, in their own network namespace.

Each has its own network, processes, home and temporary folder; Python and its packages are those of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from helpers.running import HANGS_S, SMALL, command, environment, study, wait_for

UNPACKED = Path(__file__).parents[2] / "build" / "openssh"  # where `make test` unpacks it
HOME = "10.77.0.254"
ADDRESSES = {"alpha": "10.77.0.1", "beta": "10.77.0.2"}
SERVER = """
ListenAddress {address}
HostKey /run/host_key
AuthorizedKeysFile /run/key.pub
PidFile none
StrictModes no
UsePAM no
"""
CLIENT = """
Host alpha
    HostName {alpha}
Host locked
    HostName {alpha}
    IdentityFile {folder}/wrong
Host nowhere
    HostName 10.77.0.99
Host * !locked
    IdentityFile {folder}/key
Host *
    User root
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
"""
NODE = """
mount -t tmpfs none /run && cp -r {files}/* /run/ && mkdir /run/sshd && mount --bind /run/passwd /etc/passwd &&
mkdir /run/home && mount -t tmpfs none {hidden} && cd / &&
read go && {{ {sshd} -D -e -f /run/server.{name} 2>/run/sshd.log & cat; }}
"""  # `go` is written when there is an address to listen on
HELD = """#!/bin/sh
case "$*" in "-m trainoff.engines.torch_ddp.worker "*) exec sleep 100000;; esac
exec {python} "$@"
"""
OLD = """#!/bin/sh
PYTHONPATH=/run/old exec {python} "$@"
"""


def sshd() -> Path | None:
    """Return the path of sshd: the installed one, or the one that was unpacked for the tests."""
    found = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    unpacked = UNPACKED / "usr" / "sbin" / "sshd"
    return Path(found) if found else unpacked if unpacked.exists() else None


@dataclass
class Machines:
    """The running machines, and how they are reached from their network."""

    holder: int  # a process on the network, beside the machines
    nodes: dict[str, int]  # by name, a process of each
    config: Path
    hidden: Path

    def command(self, *arguments: object) -> list[str]:
        return ["nsenter", "-t", str(self.holder), "-n", *command(*arguments)]

    def trainoff(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a trainoff command on the machines' network."""
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, env=environment(), timeout=6 * HANGS_S
        )

    def study(self, folder: Path, *engines: str, cluster: str, more: str = "") -> Path:
        """Write a small study on hosts; `more` continues its [params] table."""
        hosts = f'[cluster]\nkind = "hosts"\nssh_config = "{self.config}"\n{cluster}\n'
        template = SMALL.replace("[params]", f"{hosts}[params]")
        return study(folder, *engines, more=more, name="far", template=template)

    def running(self) -> list[str]:
        """Return the machines' processes other than their sshd."""
        networks = {_network(pid) for pid in self.nodes.values()} - {None}
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            of_machine = process.info["name"] in ("sshd", "cat", "unshare") or process.pid in self.nodes.values()
            if process.info["cmdline"] and not of_machine and _network(process.pid) in networks:
                found.append(f"{process.pid} {' '.join(process.info['cmdline'])[:200]}")
        return found

    def files(self, name: str) -> set[str]:
        """Return the paths in the temporary folder of a machine."""
        seen = self.path(name, self.hidden)
        return {str(path.relative_to(seen)) for path in seen.rglob("*")}

    def path(self, name: str, path: Path) -> Path:
        """Return a path of a machine as seen from here."""
        return Path(f"/proc/{self.nodes[name]}/root", *path.parts[1:])


def _network(pid: int) -> Any:
    try:
        return Path(f"/proc/{pid}/ns/net").readlink()
    except OSError:
        return None


def _do(*arguments: object) -> None:
    subprocess.run([str(argument) for argument in arguments], check=True, capture_output=True)


@contextmanager
def machines(folder: Path, hidden: Path, python: str) -> Iterator[Machines]:
    """Run the machines until the `with` ends. The folder `hidden` is empty on them."""
    server = sshd()
    assert server
    files = folder / "files"
    _write_files(folder, files, python)
    with ExitStack() as stack:
        holder = _start(stack, ["unshare", "--net", "--mount", "cat"])
        inside = ["nsenter", "-t", str(holder.pid), "-n"]
        wait_for(lambda: _network(holder.pid) != _network(os.getpid()))
        for arguments in ("set lo up", "add lan type bridge", "set lan up"):
            _do(*inside, "ip", "link", *arguments.split())
        _do(*inside, "ip", "address", "add", f"{HOME}/24", "dev", "lan")
        found = Machines(holder.pid, {}, files / "client", hidden)
        for name, address in ADDRESSES.items():
            script = NODE.format(files=files, hidden=hidden, sshd=server, name=name)
            isolated = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            node = _start(stack, [*inside, *isolated, "sh", "-c", script])
            wait_for(lambda node=node: psutil.Process(node.pid).children())
            (first,) = psutil.Process(node.pid).children()
            _connect(inside, name, address, first.pid)
            assert node.stdin
            node.stdin.write(b"go\n")
            node.stdin.flush()
            found.nodes[name] = first.pid
            wait_for(lambda address=address: _accepts_connections(inside, address))
        yield found


def _start(stack: ExitStack, argv: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, because its standard input closes."""
    libraries = ":".join(str(path) for path in UNPACKED.glob("usr/lib/*-linux-gnu*"))
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, env={**os.environ, "LD_LIBRARY_PATH": libraries})
    assert process.stdin
    stack.callback(process.wait)
    stack.callback(process.stdin.close)
    return process


def _connect(inside: list[str], name: str, address: str, pid: int) -> None:
    _do(*inside, "ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", pid)
    _do(*inside, "ip", "link", "set", f"to-{name}", "master", "lan", "up")
    there = ["nsenter", "-t", str(pid), "-n", "ip"]
    _do(*there, "address", "add", f"{address}/24", "dev", "eth0")
    for link in ("lo", "eth0"):
        _do(*there, "link", "set", link, "up")


def _accepts_connections(inside: list[str], address: str) -> bool:
    call = ["bash", "-c", f"</dev/tcp/{address}/22"]
    return subprocess.run([*inside, *call], capture_output=True).returncode == 0


def _write_files(folder: Path, files: Path, python: str) -> None:
    files.mkdir(parents=True)
    for name in ("key", "wrong", "host_key"):
        _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", files / name)
    public = (files / "host_key.pub").read_text()
    (files / "known_hosts").write_text("".join(f"{address} {public}" for address in ADDRESSES.values()))
    (files / "client").write_text(CLIENT.format(folder=files, **ADDRESSES))
    for name, address in ADDRESSES.items():
        (files / f"server.{name}").write_text(SERVER.format(address=address))
    # Another home: Python may be installed in the home of this machine.
    (files / "passwd").write_text("root:x:0:0::/run/home:/bin/sh\nsshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
    (files / "python").write_text(f'#!/bin/sh\necho "$@" >> /run/python.log\nexec {python} "$@"\n')
    (files / "python").chmod(0o755)
    (files / "held-python").write_text(HELD.format(python=python))
    (files / "held-python").chmod(0o755)
    (files / "old").mkdir()
    (files / "old" / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 8, 1, 'final', 0)\n")
    (files / "old-python").write_text(OLD.format(python=python))
    (files / "old-python").chmod(0o755)
