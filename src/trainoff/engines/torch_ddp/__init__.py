"""torch-ddp: PyTorch's own DistributedDataParallel, its processes started and restarted by torchrun.

`engine` is the driver's side, `agent` is torchrun, and `worker` is the program that it runs.
"""
