"""Faults: what is done to a trial's nodes on purpose, when, and what it did to the training."""
