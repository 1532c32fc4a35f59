"""Make the golden records anew: every study of studies/, in a world with a neutral name. Takes a quarter of an hour.

.venv/bin/python tests/golden/make_records.py [STUDY ...]      # such as `lab faults`; all by default

Needs root, Java 17 and every engine. Only for a change of what records hold; then run tests/golden/renew.py.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RECORDS = HERE / "records"
STUDIES = HERE / "studies"
HOST = "golden"  # what records call the machine
# Of a host of its own name, so that Java and TensorFlow find its address.
NAMED = f'hostname {HOST}; echo "127.0.0.1 localhost {HOST}" > "$HOSTS"; mount --bind "$HOSTS" /etc/hosts; exec "$@"'
WAITS = "statuses-interrupted"  # the study whose training waits until it is stopped
RETRIED = {"statuses": ("--engine", "crasher", "--retry", "failed")}  # studies with a second attempt
PATIENCE_S = 300.0


def main(names: list[str]) -> None:
    """Run the studies, or all of them over nothing."""
    if not names:
        shutil.rmtree(RECORDS, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir="/srv" if Path("/srv").is_dir() else None) as place:
        own = {
            "TRAINOFF_CACHE": str(ROOT / "build" / "golden"),
            "TRAINOFF_LOCK": "trainoff-golden",
            "TRAINOFF_RUNTIME": place,
            "TRAINOFF_CONTROL_S": "0.1",
            "PYTHONPATH": str(HERE.parent / "plugin"),
            "GATE": f"{place}/gate",
            "HOSTS": f"{place}/hosts",
        }
        Path(place, "gate").mkdir()
        env = {key: value for key, value in os.environ.items() if not key.startswith("TRAINOFF_")} | own
        for path in sorted(STUDIES.glob("*.toml")):
            if names and path.stem not in names:
                continue
            run(path, env, stopped=path.stem == WAITS)
            if more := RETRIED.get(path.stem):
                run(path, env, *more)
    for staging in RECORDS.glob("*/.staging"):
        shutil.rmtree(staging)
    name_no_kernel()


def name_no_kernel() -> None:
    """Leave the kernel its number in the records, and no name: who builds kernels calls them after their place."""
    release = platform.release()
    number = re.match(r"[\d.]*\d", release)
    for path in RECORDS.glob("*/*/*"):
        if number and path.suffix in (".json", ".jsonl", ".txt") and release in (text := path.read_text()):
            path.write_text(text.replace(release, number[0]))


def run(path: Path, env: dict[str, str], *more: str, stopped: bool = False) -> None:
    """Run a study; one that is to be stopped, until it trains."""
    if not stopped:
        env = {key: value for key, value in env.items() if key != "GATE"}
    words = ["-P", "-m", "trainoff", "run", path.relative_to(ROOT), "--out", RECORDS.relative_to(ROOT), *more]
    command = ["unshare", "--uts", "--mount", "sh", "-ec", NAMED, "sh", sys.executable, *map(str, words)]
    print(f"--- {path.stem} {' '.join(more)}", flush=True)
    going = subprocess.Popen(command, cwd=ROOT, env=env, preexec_fn=hear_ctrl_c)
    if stopped:
        deadline = time.monotonic() + PATIENCE_S
        while not any('"name": "train"' in each.read_text() for each in RECORDS.glob("*/.staging/*/events.jsonl")):
            assert going.poll() is None, "it ended before it trained"
            assert time.monotonic() < deadline, "it never trained"
            time.sleep(0.1)
        time.sleep(1.5)  # for a few samples
        going.send_signal(signal.SIGINT)
    going.wait()


def hear_ctrl_c() -> None:
    """Do not ignore it, as what a shell starts in the background does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main(sys.argv[1:])
