"""Finding Java: the first that Spark can use, or what the first one there lacks."""

import re
import stat

import pytest

from trainoff.clusters import java
from trainoff.engines.spark import SparkAverage


def fake(folder, version, modules="java.base jdk.incubator.vector"):
    """A Java that can only say its version."""
    (folder / "bin").mkdir(parents=True)
    command = folder / "bin" / "java"
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


@pytest.fixture
def places(monkeypatch):
    """Makes these the only places where a Java may be."""
    java.find_java.cache_clear()

    def only(*homes):
        monkeypatch.setattr(java, "_candidates", lambda: iter(homes))

    yield only
    java.find_java.cache_clear()


def test_none_is_none(places, tmp_path):
    places(tmp_path / "not-there")
    assert java.find_java() is None
    (missing,) = SparkAverage().missing()
    assert str(missing) == f"needs Java 17 or later; {java.INSTALL}"


def test_an_old_one_is_passed_over(places, tmp_path):
    places(fake(tmp_path / "8", "1.8.0_402"), fake(tmp_path / "21", "21.0.2"))
    found = java.find_java()
    assert found.version == "21.0.2"
    assert found.lacks is None


@pytest.mark.parametrize(
    ("version", "modules", "sentence"),
    [
        ("1.8.0_402", "", "Java 1.8.0_402 in .* is too old for Spark, which needs Java 17"),
        ("11.0.2", "java.base", "too old"),
        ("17.0.9", "java.base", "built without the module jdk.incubator.vector"),
    ],
)
def test_what_one_lacks_is_said(places, tmp_path, version, modules, sentence):
    places(fake(tmp_path / "only", version, modules))
    (missing,) = SparkAverage().missing()
    assert re.search(sentence, str(missing))
