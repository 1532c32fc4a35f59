"""Downloads that go on where a broken transfer stopped."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from trainoff.data.dataset import Progress
from trainoff.data.sources import Unavailable

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
