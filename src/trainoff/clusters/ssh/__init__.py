"""The `hosts` cluster: machines that ssh reaches. The remote agent on each of them is the runner's."""
