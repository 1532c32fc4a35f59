"""A trial's own PID and network namespace: no orphan survives, no port clashes, `lo` counts only its bytes."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

from trainoff.clusters.local import call

_CLONE = {"mount": 0x00020000, "user": 0x10000000, "pid": 0x20000000, "network": 0x40000000}
_MS_REC_PRIVATE = 0x4000 | 0x40000
_PR_SET_CHILD_SUBREAPER = 36
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1

LINUX = sys.platform == "linux"


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own: the next best thing to a PID namespace."""
    if LINUX:
        call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def unshare(network: bool, lab: bool = False) -> None:
    """Leave the machine's namespaces; children forked from now on live in a PID namespace of their own.

    Who is not root on the machine is in a lab, for only root may go from one node's network to another's.
    """
    wanted = _CLONE["pid"] | _CLONE["mount"] | (_CLONE["network"] if network else 0)
    if os.geteuid() == 0:
        call("unshare", wanted)
        return
    uid, gid = os.getuid(), os.getgid()
    call("unshare", wanted | _CLONE["user"])
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{0 if lab else uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{0 if lab else gid} {gid} 1")


def settle(network: bool) -> None:
    """Inside, as process 1: a /proc that shows only this trial, and a loopback that is up."""
    call("mount", b"none", b"/", None, _MS_REC_PRIVATE, None)
    call("mount", b"proc", b"/proc", b"proc", 0, None)
    if network:
        _loopback_up()


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def why_not() -> str | None:
    """Why trials cannot have namespaces here, or None if they can. Tried for real, in a process of its own."""
    if os.environ.get("TRAINOFF_ISOLATION") == "process-group":
        return "TRAINOFF_ISOLATION asks for process groups"
    if not LINUX:
        return f"namespaces are a Linux feature; this is {sys.platform}"
    return _tried()


@cache
def _tried() -> str | None:
    """Try to enter namespaces, once: a plan asks for each of its trials."""
    tried = subprocess.run([sys.executable, "-P", "-m", "trainoff.clusters.namespaces"], capture_output=True, text=True)
    return tried.stdout.strip() or (None if tried.returncode == 0 else tried.stderr.strip()[-200:])


def _try() -> None:
    """Enter the namespaces and leave again; prints what stood in the way."""
    unshare(network=True)
    inner = os.fork()
    if inner == 0:
        try:
            settle(network=True)
        except OSError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(inner, 0)


if __name__ == "__main__":
    try:
        _try()
    except OSError as error:
        print(error)
