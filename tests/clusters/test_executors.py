"""The number and memory of executors on a cluster, against the published table."""

import pytest

from helpers.running import study, trainoff
from trainoff.clusters.spark import allocate
from trainoff.errors import TrainoffError

# Two nodes of 24 cores and 64 GB; cores per executor, executors, GB of each as published.
PUBLISHED = [(4, 9, 11), (5, 7, 13), (6, 5, 19)]


@pytest.mark.parametrize(("cores", "executors", "memory_gb"), PUBLISHED)
def test_the_published_table_is_reproduced(cores, executors, memory_gb):
    found = allocate(nodes=2, cores=24, memory_gb=64, executor_cores=cores)
    assert found.count == executors
    exact = 63 / (23 // cores) - 2
    assert found.memory_gb == int(exact)
    assert memory_gb in (int(exact), round(exact)), "the document rounds 13.75 down and 10.6 up"


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ({"nodes": 1, "cores": 4, "memory_gb": 64, "executor_cores": 4}, "no executor of 4 cores fits"),
        ({"nodes": 1, "cores": 3, "memory_gb": 64, "executor_cores": 2}, "one is the cluster manager's"),
        ({"nodes": 2, "cores": 5, "memory_gb": 4, "executor_cores": 2}, "too little for 2 executors"),
    ],
)
def test_executors_that_do_not_fit_are_an_error(cluster, sentence):
    with pytest.raises(TrainoffError, match=sentence):
        allocate(**cluster)


@pytest.mark.cluster
def test_a_study_with_executors_that_do_not_fit_is_unsupported(tmp_path):
    path = study(tmp_path, "spark-average", more="workers = 2\n[cluster]\ncores = 2\nexecutor_cores = 5\nmemory_gb = 8")
    done = trainoff("run", path, "--out", tmp_path / "out")
    assert done.returncode == 0
    assert "no executor of 5 cores fits" in done.stdout


@pytest.mark.cluster
def test_executors_need_memory_gb(tmp_path):
    path = study(tmp_path, "spark-average", more="workers = 2\n[cluster]\ncores = 24\nexecutor_cores = 5")
    done = trainoff("run", path, "--out", tmp_path / "out")
    assert "set memory_gb to what each node has" in done.stdout
