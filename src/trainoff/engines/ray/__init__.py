"""ray-torch: PyTorch on a Ray cluster, by Ray Train. `engine` is the driver's side, `worker` runs on Ray's workers."""
