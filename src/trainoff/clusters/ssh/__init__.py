"""The `hosts` cluster: machines that are reached by ssh. `runner/remote_agent.py` runs on each of them."""
