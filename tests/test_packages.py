"""The architecture: a package imports only the packages that it may import."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "trainoff"
MAY_IMPORT = {
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
MAY_IMPORT["report"] = set(MAY_IMPORT) - {"models"}
MAY_IMPORT["cli"] = set(MAY_IMPORT) - {"models"}
BASE = {"errors", "files"}  # modules that every package may import
FILES = [pytest.param(path, id=str(path.relative_to(SOURCE))) for path in sorted(SOURCE.rglob("*.py"))]


def imports(path: Path) -> set[str]:
    """Return what a file imports from trainoff: the names after the first dot."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            folders = ("trainoff", *path.parent.relative_to(SOURCE).parts)
            above = folders[: len(folders) - node.level + 1] if node.level else ()
            names |= {".".join((*above, *filter(None, [node.module]), alias.name)) for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "trainoff" and len(part) > 1}


def test_every_package_is_named_here():
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} == MAY_IMPORT.keys()


@pytest.mark.parametrize("path", [each for each in FILES if each.values[0].parent != SOURCE])
def test_a_package_imports_only_the_packages_before_it(path):
    package = path.relative_to(SOURCE).parts[0]
    assert imports(path) - {package, "__version__"} <= MAY_IMPORT[package] | BASE


@pytest.mark.parametrize("path", FILES)
def test_a_module_begins_with_a_docstring(path):
    assert ast.get_docstring(ast.parse(path.read_text()))
