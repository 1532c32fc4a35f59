"""The lab of emulated nodes: its supervisor, and the commands of `trainoff lab`."""
