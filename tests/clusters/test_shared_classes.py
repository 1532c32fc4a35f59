"""Classes that the JVMs of Spark share: asked for where they are ready, made from what Spark really loads."""

import subprocess

import pytest

from trainoff.clusters import java as shared_classes
from trainoff.clusters.java import find_java
from trainoff.clusters.spark import MASTER, SparkFolder


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Where the classes are; there are none yet."""
    place = tmp_path / "a folder" / "classes.jsa"
    place.parent.mkdir()
    monkeypatch.setattr(shared_classes, "place", lambda java: place)
    return place


@pytest.mark.java
def test_classes_are_shared_only_where_they_are_ready_and_asked_for(file, tmp_path, monkeypatch):
    assert "SharedArchiveFile" not in SparkFolder(tmp_path).java_options
    file.touch()
    assert f'"-XX:SharedArchiveFile={file}"' in SparkFolder(tmp_path).java_options
    monkeypatch.delenv(shared_classes.ASKED)
    assert "SharedArchiveFile" not in SparkFolder(tmp_path).java_options


def test_there_is_a_file_for_every_java():
    one, other = (shared_classes.Java(home=None, version=version) for version in ("17.0.1", "21.0.2"))
    assert shared_classes.place(one) != shared_classes.place(other)


@pytest.mark.soak
@pytest.mark.java
def test_a_jvm_of_a_cluster_can_use_what_was_made(file, tmp_path):
    shared_classes.make(find_java(), file)
    spark = SparkFolder(tmp_path)
    must = {"SPARK_DAEMON_JAVA_OPTS": f"{spark.java_options} -Xshare:on -Xlog:class+load"}
    done = subprocess.run(
        [shared_classes.home() / "bin" / "spark-class", MASTER, "--help"],
        env=spark.environment("127.0.0.1") | must,
        capture_output=True,
        text=True,
    )
    assert "org.apache.spark.deploy.master.Master source: shared objects file (top)" in done.stdout + done.stderr
