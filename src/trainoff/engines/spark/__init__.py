"""The engines on Spark: `average`, `mllib`, `sklearn` and `torch`. What they share is in `base` and `session`.

`rounds` and `desk` are the two ends of training by averaging: the driver, and the Python worker of an executor.
"""
