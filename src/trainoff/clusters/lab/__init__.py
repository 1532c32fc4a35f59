"""The lab: a cluster of emulated nodes on this machine.

A node is a network namespace behind a shaped link to a bridge, and a control group with limits of CPU time and memory.
`cgroups` makes the control groups, `cluster` the network and the cluster that an engine sees; `register` lists the
running labs and says what a machine needs for one.
"""
