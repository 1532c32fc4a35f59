"""The line of a key in every notation of TOML."""

import tomllib

import pytest

from helpers.studies import TEXT, key_paths
from trainoff.study.source import KeyPath, TomlLines


@pytest.mark.parametrize(
    ("key_path", "line"),
    [
        (("name",), 1),
        (("engines",), 2),
        (("engines", 0), 3),
        (("engines", 1), 4),
        (("long",), 6),
        (("quotes",), 9),
        (("params",), 12),
        (("params", "stop", "patience"), 13),
        (("params", "a", "b", "c d"), 14),
        (("engine",), 16),
        (("engine", "spark-mllib", "max_iter"), 17),
        (("case",), 19),
        (("case", 0, "workers"), 20),
        (("case", 1), 21),
        (("case", 1, "workers"), 22),
        (("case", 1, "nested", 1, 0), 24),
        (("case", 1, "more", "deep"), 26),
        (("ab", "x"), 28),
    ],
)
def test_the_line_of_a_key_path(key_path: KeyPath, line: int) -> None:
    assert key_path in TomlLines(TEXT)
    assert TomlLines(TEXT).line(key_path) == line


def test_a_missing_key_has_the_line_of_its_table() -> None:
    lines = TomlLines(TEXT)
    assert lines.line(("case", 1, "absent")) == 21
    assert lines.line(("absent",)) is None
    assert ("absent",) not in lines


def test_every_key_path_has_a_line() -> None:
    lines = TomlLines(TEXT)
    assert [key_path for key_path in key_paths(tomllib.loads(TEXT)) if key_path not in lines] == []
