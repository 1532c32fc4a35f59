"""`ray start`, as a process of a trial: `python -m trainoff.clusters.ray_node OPTIONS`.

Ray replaces a loopback address by one that others can reach; here it is left as it is, so that nobody can.
"""

from __future__ import annotations

import sys

# Commands besides `start`: to load them takes three times as long as to load the rest, and Ray can do without.
OTHER_COMMANDS = ("ray.util.state.state_cli", "ray.dashboard.modules.job.cli", "ray.serve.scripts")


def stay_on_loopback() -> None:
    """Let this process's Ray keep the address 127.0.0.1."""
    from ray._private import services

    services.resolve_ip_for_localhost = lambda host: host


def main() -> None:
    sys.modules.update(dict.fromkeys(OTHER_COMMANDS))  # type: ignore[arg-type]  # None: Python will not find them
    from ray.scripts import scripts

    from trainoff.clusters.orphans import die_with_parent

    # Without that a server waits for clients, and none will come.
    scripts.get_ray_client_dependency_error = ImportError  # what it has imported itself

    die_with_parent()
    if "127.0.0.1" in sys.argv:
        stay_on_loopback()
    scripts.start(sys.argv[1:])


if __name__ == "__main__":
    main()
