"""The leanest training loops we could write, one per framework: what an adapter is held against.

Each file has `make(model, weights, x, y, batch, threads)`, which returns a function that trains once over the rows it
is given, by momentum at a constant rate.
"""

RATE, MOMENTUM = 0.01, 0.9
