"""The `attach` cluster: one that exists already, used by naming it. trainoff starts and ends nothing on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainoff.clusters.local import Processes


class Attached(Processes):
    """The address of a cluster, and what its owner wants it to be told.

    Its one node is this machine, for what an engine needs here to speak with the cluster, such as a driver.
    """

    def __init__(self, address: str, properties: Mapping[str, str], folder: Path) -> None:
        super().__init__(1, folder)
        self.address, self.properties = address, properties
