"""Engines on Dask: the same algorithms as on Spark, scikit-learn on partitioned rows, and PyTorch.

`session` is the connection to a cluster, `crew` the workers of a training by rounds, `rows` how rows reach them.
"""
