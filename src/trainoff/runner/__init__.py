"""Runs trials: in processes of their own, on the clock, sampled, and ended for certain."""
