"""Minimal training loops, one per framework, with which adapters are compared.

Each module has `make(model, weights, x, y, batch, threads)`, which returns a function that trains once over given rows,
by momentum with a constant learning rate.
"""

RATE, MOMENTUM = 0.01, 0.9
