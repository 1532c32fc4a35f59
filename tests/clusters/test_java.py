"""Finding Java: the first that Spark can use, or what the first one lacks; classes that JVMs share."""

import re
import stat
import subprocess

import pytest

from trainoff.clusters import java
from trainoff.clusters.spark import MASTER, SparkFolder
from trainoff.engines.spark import SparkAverage


def fake(folder, version, modules="java.base jdk.incubator.vector"):
    """Make a Java that can only print its version."""
    (folder / "bin").mkdir(parents=True)
    command = folder / "bin" / "java"
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


@pytest.fixture
def places(monkeypatch):
    """A function that makes some folders the only places in which Java is searched."""
    java.find_java.cache_clear()

    def only(*homes):
        monkeypatch.setattr(java, "_homes", lambda: iter(homes))

    yield only
    java.find_java.cache_clear()


def test_without_java_the_installation_command_is_reported(places, tmp_path):
    places(tmp_path / "not-there")
    assert java.find_java() is None
    (missing,) = SparkAverage().missing()
    assert str(missing) == f"needs Java 17 or later; {java.INSTALL}"


def test_a_java_that_is_too_old_is_skipped(places, tmp_path):
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
def test_what_a_java_lacks_is_reported(places, tmp_path, version, modules, sentence):
    places(fake(tmp_path / "only", version, modules))
    (missing,) = SparkAverage().missing()
    assert re.search(sentence, str(missing))


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The path of the shared classes, which do not exist yet."""
    place = tmp_path / "a folder" / "classes.jsa"
    place.parent.mkdir()
    monkeypatch.setattr(java, "place", lambda _: place)
    return place


@pytest.mark.java
def test_classes_are_shared_only_if_they_are_ready_and_requested(file, tmp_path, monkeypatch):
    assert "SharedArchiveFile" not in SparkFolder(tmp_path).java_options
    file.touch()
    assert f'"-XX:SharedArchiveFile={file}"' in SparkFolder(tmp_path).java_options
    monkeypatch.delenv(java.SHARE)
    assert "SharedArchiveFile" not in SparkFolder(tmp_path).java_options


def test_every_java_has_its_own_file():
    one, other = (java.Java(home=None, version=version) for version in ("17.0.1", "21.0.2"))
    assert java.place(one) != java.place(other)


@pytest.mark.soak
@pytest.mark.java
def test_a_jvm_can_use_the_shared_classes(file, tmp_path):
    java.make(java.find_java(), file)
    spark = SparkFolder(tmp_path)
    must = {"SPARK_DAEMON_JAVA_OPTS": f"{spark.java_options} -Xshare:on -Xlog:class+load"}
    done = subprocess.run(
        [java.home() / "bin" / "spark-class", MASTER, "--help"],
        env=spark.environment("127.0.0.1") | must,
        capture_output=True,
        text=True,
    )
    assert "org.apache.spark.deploy.master.Master source: shared objects file (top)" in done.stdout + done.stderr
