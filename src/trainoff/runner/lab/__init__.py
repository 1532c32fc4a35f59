"""The lab of emulated nodes: its supervisor, its use by hand, and the nodes of a trial."""
