"""`ray start`, as a process of a trial: `python -m trainoff.clusters.ray_node OPTIONS`.

Ray replaces a loopback address by one that others can reach; here it is left as it is, so that nobody can.
"""

from __future__ import annotations

import sys


def stay_on_loopback() -> None:
    """Let this process's Ray keep the address 127.0.0.1."""
    from ray._private import services

    services.resolve_ip_for_localhost = lambda host: host


def main() -> None:
    from ray.scripts.scripts import start

    from trainoff.clusters.orphans import die_with_parent

    die_with_parent()
    if "127.0.0.1" in sys.argv:
        stay_on_loopback()
    start(sys.argv[1:])


if __name__ == "__main__":
    main()
