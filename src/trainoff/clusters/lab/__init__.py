"""The lab: a cluster of emulated nodes on this machine.

A node is a network namespace on a bridge, behind a link of its own speed, and a control group with a share of the CPUs
and a limit of memory. `groups` holds the control groups, `network` the links, `nodes` what a node is; `able` says
whether this machine can be a lab, `ground` makes and removes what lies outside of the trial, and `register` knows which
labs there are. `cluster` is what an engine sees of it.
"""
