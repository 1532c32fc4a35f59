"""Rows as MLlib wants them: a data frame of labels and vectors, shipped as Arrow columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql.types import DoubleType, StructField, StructType

from trainoff.data import Csr
from trainoff.engines.contract import Refused

if TYPE_CHECKING:
    from trainoff.engines.spark.session import SparkConnection

MOST_VALUES = 2**31 - 1
SPARSE = 0  # how Spark marks a sparse vector


def frame(session: SparkConnection, x: Any, labels: Any) -> Any:
    """A data frame of the rows with as many parts as tasks run at once."""
    make = _sparse if isinstance(x, Csr) else _dense
    return make(session, x, pa.array(np.asarray(labels, np.float64))).repartition(session.slots)


def _dense(session: SparkConnection, x: Any, labels: Any) -> Any:
    rows, width = x.shape
    starts = np.arange(0, (rows + 1) * width, width)
    lists = pa.ListArray.from_arrays(_offsets(starts), pa.array(np.asarray(x).ravel()))
    rows_frame = session.sql.createDataFrame(pa.table({"label": labels, "x": lists}))
    return rows_frame.select("label", array_to_vector(rows_frame["x"]).alias("features"))


def _sparse(session: SparkConnection, x: Csr, labels: Any) -> Any:
    """Sparse vectors as Spark stores them: a struct of type, size, indices and values."""
    part = x.compact()
    starts = _offsets(part.starts)
    vectors = pa.StructArray.from_arrays(
        [
            pa.array(np.full(len(part), SPARSE, np.int8)),
            pa.array(np.full(len(part), part.width, np.int32)),
            pa.ListArray.from_arrays(starts, pa.array(np.asarray(part.columns))),
            pa.ListArray.from_arrays(starts, pa.array(np.asarray(part.values, np.float64))),
        ],
        ["type", "size", "indices", "values"],
    )
    return _as_vectors(session, session.sql.createDataFrame(pa.table({"label": labels, "features": vectors})))


def _offsets(starts: Any) -> Any:
    """Where each row begins, as Arrow's lists have it."""
    if starts[-1] > MOST_VALUES:
        raise Refused(f"{starts[-1]:,} values do not fit into the columns that Spark takes; at most {MOST_VALUES:,} do")
    return pa.array(starts.astype(np.int32))


def _as_vectors(session: SparkConnection, structs: Any) -> Any:
    """Let Spark take structs for the vectors that they are. It has no way from Arrow to vectors, but this is one."""
    schema = StructType([StructField("label", DoubleType()), StructField("features", VectorUDT())])
    theirs = session.context._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    rows = structs._jdf.queryExecution().toRdd()
    return DataFrame(session.sql._jsparkSession.internalCreateDataFrame(rows, theirs, False), session.sql)
