"""Training by rounds: weights go out, every worker makes some steps of its own, their weights are averaged.

The same for Spark and for Dask: `desk` is what a worker does, `drive` what the driver does, `search` tries many
learning rates instead. How weights and work travel is each cluster's own.
"""
