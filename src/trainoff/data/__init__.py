"""Datasets: where they come from, how they are checked, cached and read.

`get` brings a dataset into the cache, `load` maps it from there. Datasets have a name (`catalogue` lists
them) or are the user's own, by path: a folder of IDX files, .npz, .csv or .parquet, or with sparse rows a
click log or an svmlight file. `Order` and `share` say which rows make up which batch.
"""

from trainoff.data.batch_order import Order, share
from trainoff.data.catalogue import DatasetEntry, catalogue, entry, get, identity, load, verify
from trainoff.data.dataset import Csr, Data, Matrix, Progress
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
