"""spark-sklearn: scikit-learn's classifiers on the executors, `partial_fit` by `partial_fit`, averaged by rounds."""

from __future__ import annotations

from trainoff.engines.shared.local_sgd.driver import SklearnAveraging
from trainoff.engines.spark.local_sgd import OnSpark


class SparkSklearn(SklearnAveraging, OnSpark):
    """MLPClassifier and SGDClassifier on every executor."""

    name = "spark-sklearn"
    about = "scikit-learn's MLPClassifier and SGDClassifier on every executor, weights averaged"
    modules = (*OnSpark.modules, "sklearn")
    on_executors = ("numpy", "sklearn")
