"""CSV and Parquet: a table of the records, one of the learning curves and one of the resource samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from trainoff import __version__
from trainoff.data import Progress
from trainoff.errors import TrainoffError
from trainoff.records import EXPORTED, Record, curves, samples, table

if TYPE_CHECKING:
    import polars


def write(place: Place, folder: Path, records: Sequence[Record], say: Progress) -> list[str]:
    """Write the three tables; returns what to tell of them."""
    to = place.to
    made = {
        "records": table(records),
        "curves": curves(folder, records, say),
        "samples": samples(folder, records, say),
    }
    for name, frame in made.items():
        with place.file(f"{name}.{to}") as path:
            _write(frame, path, to)
    sizes = [f"{name}.{to} ({frame.height:,} x {frame.width})" for name, frame in made.items()]
    return [f": {', '.join(sizes)}"]


def _write(frame: polars.DataFrame, path: Path, to: str) -> None:
    if to == "csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)


class Place:
    """A folder that trainoff has exported to, or may: a new one, an empty one, or one that it marked as its own.

    With the end of the `with` it holds what was written now; files of an earlier export that were not written
    again are gone, and what somebody else has put there stays.
    """

    def __init__(self, folder: Path, to: str) -> None:
        self.folder = folder
        self.to = to
        self._written: list[str] = []
        self._before: list[str] = []

    def __enter__(self) -> Self:
        with self._telling():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._before = self._own_files()
            self._mark([*self._before])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with self._telling():
                for name in set(self._before) - set(self._written):
                    self._remove(name)
                self._mark(self._written)
        else:  # all of these are its own
            with suppress(OSError):  # what went wrong first is what is told
                self._mark(list(dict.fromkeys([*self._before, *self._written])))

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """A file to write, which appears under its name once it is whole."""
        path = self.folder / name
        part = path.with_name(f".{path.name}.part")
        with self._telling():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield part
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        self._written.append(name)

    def _own_files(self) -> list[str]:
        """The files of the export before this one; raises if the folder is somebody else's."""
        marker = self._marker()
        if marker is None and any(self.folder.iterdir()):
            raise TrainoffError(
                f"{self.folder}: there are files here that trainoff did not export; name another folder with -o"
            )
        if marker and marker.get("to") != self.to:
            raise TrainoffError(
                f"{self.folder}: this folder holds an export to {marker.get('to')}; name another one with -o"
            )
        return [str(name) for name in marker.get("files", [])] if marker else []

    def _marker(self) -> dict[str, Any] | None:
        try:
            read = json.loads((self.folder / EXPORTED).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return read if isinstance(read, dict) else None

    def _mark(self, files: list[str]) -> None:
        text = json.dumps({"to": self.to, "trainoff": __version__, "files": files}, indent=1)
        part = self.folder / f".{EXPORTED}.part"
        part.write_text(text + "\n")
        part.replace(self.folder / EXPORTED)

    def _remove(self, name: str) -> None:
        path = (self.folder / name).resolve()
        if path.is_relative_to(self.folder.resolve()):  # a marker could have been written by anybody
            path.unlink(missing_ok=True)
            if path.parent != self.folder.resolve() and not any(path.parent.iterdir()):
                path.parent.rmdir()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise TrainoffError(
                f"{self.folder}: nothing can be exported there ({why}); name another one with -o"
            ) from error


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the imports of an extra: where it is missing, one sentence says how to get it."""
    try:
        yield
    except ImportError as error:
        raise TrainoffError(
            f'--to {extra} needs {extra}, which is not installed; pip install "trainoff[{extra}]"'
        ) from error
