"""Datasets: their sources, checks, cache and readers, and the order of batches.

`get` puts a dataset into the cache, `load` maps it from there. Datasets have a name (`catalogue` lists them) or are
the user's own, by path: a folder of IDX files, .npz, .csv or .parquet, or with sparse rows a click log or an svmlight
file. A dataset with a name is a module here with an `ENTRY` and a `RECIPE`, listed in `catalogue.py`.
"""

from trainoff.data.batch_order import Order, share
from trainoff.data.catalogue import catalogue, entry, get, identity, load, verify
from trainoff.data.dataset import Csr, Data, DatasetEntry, Matrix, Progress
from trainoff.data.split import validation_of

__all__ = [
    "Csr",
    "Data",
    "DatasetEntry",
    "Matrix",
    "Order",
    "Progress",
    "catalogue",
    "entry",
    "get",
    "identity",
    "load",
    "share",
    "validation_of",
    "verify",
]
