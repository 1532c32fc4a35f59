"""The architecture, enforced: a room knows the rooms before it in the flow and none after it."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "trainoff"
KNOWS = {
    "study": set(),
    "data": {"study"},
    "models": {"study", "data"},
    "engines": {"study", "data", "models", "clusters"},
    "clusters": {"study"},
    "records": {"study"},
    "runner": {"study", "data", "models", "engines", "clusters", "records"},
    "analysis": {"study", "records"},
    "reproductions": {"study", "records", "analysis"},
    "tuning": {"study", "data", "engines", "runner", "records", "analysis"},
}
KNOWS["report"] = set(KNOWS) - {"models"}
FILES = [pytest.param(path, id=str(path.relative_to(SOURCE))) for path in sorted(SOURCE.rglob("*.py"))]


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "trainoff":
            names |= {f"trainoff.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "trainoff" and len(part) > 1 and part[1] in KNOWS}


@pytest.mark.parametrize("path", FILES)
def test_a_room_knows_only_the_rooms_before_it(path):
    room = path.relative_to(SOURCE).parts[0]
    if room in KNOWS:
        assert imported_rooms(path) - {room} <= KNOWS[room]


@pytest.mark.parametrize("path", FILES)
def test_files_are_small_and_say_what_they_are(path):
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "a file starts with a docstring"
    assert len(text.splitlines()) <= 300, "a second idea may be hiding here"
