"""Fixtures of the engines' tests."""

import pytest

from trainoff.clusters import Cluster
from trainoff.clusters.spark import SparkFolder, start_standalone


@pytest.fixture
def existing(tmp_path):
    """A Spark cluster of two workers that belongs to no trial; yields its address and secret."""
    spark, secret = SparkFolder(tmp_path), "a secret of its owner"
    owner = {"spark.authenticate": "true", "spark.authenticate.secret": secret.replace(" ", "-")}
    spark.configure(owner, secret=False)
    with Cluster(2, tmp_path) as cluster:
        yield start_standalone(cluster, spark, 1, 1024), owner["spark.authenticate.secret"]
