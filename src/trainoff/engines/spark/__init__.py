"""The engines on Spark: what they share is in `session` and `base`, each engine has a file of its own.

`rounds` and `desk` are the two ends of training by averaging: the driver, and the Python worker of an executor.
"""
