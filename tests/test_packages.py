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
FILES = [pytest.param(path, id=str(path.relative_to(SOURCE))) for path in sorted(SOURCE.rglob("*.py"))]


def imported_packages(path: Path) -> set[str]:
    """Return the packages that a file imports from."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "trainoff":
            names |= {f"trainoff.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "trainoff" and len(part) > 1 and part[1] in MAY_IMPORT}


@pytest.mark.parametrize("path", FILES)
def test_a_package_imports_only_the_packages_before_it(path):
    package = path.relative_to(SOURCE).parts[0]
    if package in MAY_IMPORT:
        assert imported_packages(path) - {package} <= MAY_IMPORT[package]


@pytest.mark.parametrize("path", FILES)
def test_a_module_begins_with_a_docstring(path):
    assert ast.get_docstring(ast.parse(path.read_text()))
