"""Which studies a reproduction runs: files that come with trainoff, each saying at which scale."""

from __future__ import annotations

from pathlib import Path

from trainoff.errors import TrainoffError
from trainoff.published import REPRODUCTIONS
from trainoff.study.suggestions import quote, suggest

STUDIES = Path(__file__).parent / "studies"


def names() -> tuple[str, ...]:
    """The reproductions."""
    return REPRODUCTIONS


def studies(name: str) -> list[Path]:
    """The study files of a reproduction, in the order in which they run."""
    if name not in names():
        hint = suggest(name, names(), "there are")
        raise TrainoffError(f"there is no published study {quote(name)} to reproduce; {hint}")
    return sorted((STUDIES / name).glob("*.toml"))


def scale(path: Path) -> str:
    """What a study file says of itself: its first comment, in which the scale is stated."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)
