"""What several engines share: reporting, the control channel, recovery, snapshots, storage and local SGD."""
