"""TensorFlow on several processes: all-reduce between workers, or parameter servers and a coordinator.

base        what both engines do alike: start the processes, follow the leader, begin again after a loss
allreduce   tf-allreduce; its workers run `mirrored`
ps          tf-ps; its servers run `serve`, and one process runs `coordinator`, which leads in one of three modes:
            `asynchronous`, `synchronous`, `pipeline` (model-parallel)
store       the variables on the parameter servers; `dense` and `sparse` say what a worker computes with them
"""
