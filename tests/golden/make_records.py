"""Make the golden records again: run every study of studies/ on a host called `golden`. Takes a quarter of an hour.

.venv/bin/python tests/golden/make_records.py [STUDY ...]      # such as `lab faults`; all by default

Needs root, Java 17 and every engine. Only for a change of what records contain; run tests/golden/renew.py afterwards.
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
HOST = "golden"  # the host name in the records
# The host's name has an address, which Java and TensorFlow look up.
NAMED = f'hostname {HOST}; echo "127.0.0.1 localhost {HOST}" > "$HOSTS"; mount --bind "$HOSTS" /etc/hosts; exec "$@"'
INTERRUPTED = "statuses-interrupted"  # the study that is stopped by Ctrl-C during its training
RETRIED = {"statuses": ("--engine", "crasher", "--retry", "failed")}  # studies with a second attempt
DEADLINE_S = 300.0


def main(names: list[str]) -> None:
    """Run these studies, or remove all records and run all."""
    if not names:
        shutil.rmtree(RECORDS, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir="/srv" if Path("/srv").is_dir() else None) as place:
        settings = {
            "TRAINOFF_CACHE": str(ROOT / "build" / "golden"),
            "TRAINOFF_LOCK": "trainoff-golden",
            "TRAINOFF_RUNTIME": place,
            "TRAINOFF_CONTROL_S": "0.1",
            "PYTHONPATH": str(HERE.parent / "plugin"),
            "PERMITS": f"{place}/permits",
            "HOSTS": f"{place}/hosts",
        }
        Path(place, "permits").mkdir()
        env = {key: value for key, value in os.environ.items() if not key.startswith("TRAINOFF_")} | settings
        for path in sorted(STUDIES.glob("*.toml")):
            if names and path.stem not in names:
                continue
            run(path, env, stopped=path.stem == INTERRUPTED)
            if more := RETRIED.get(path.stem):
                run(path, env, *more)
    for staging in RECORDS.glob("*/.staging"):
        shutil.rmtree(staging)
    name_no_kernel()


def name_no_kernel() -> None:
    """Cut the kernel's release in the records down to its number: the rest names where it was built."""
    release = platform.release()
    number = re.match(r"[\d.]*\d", release)
    for path in RECORDS.glob("*/*/*"):
        if number and path.suffix in (".json", ".jsonl", ".txt") and release in (text := path.read_text()):
            path.write_text(text.replace(release, number[0]))


def run(path: Path, env: dict[str, str], *more: str, stopped: bool = False) -> None:
    """Run a study; interrupt one that is to be stopped when it trains."""
    if not stopped:
        env = {key: value for key, value in env.items() if key != "PERMITS"}
    arguments = ["-P", "-m", "trainoff", "run", path.relative_to(ROOT), "--out", RECORDS.relative_to(ROOT), *more]
    command = ["unshare", "--uts", "--mount", "sh", "-ec", NAMED, "sh", sys.executable, *map(str, arguments)]
    print(f"--- {path.stem} {' '.join(more)}", flush=True)
    process = subprocess.Popen(command, cwd=ROOT, env=env, preexec_fn=accept_ctrl_c)
    if stopped:
        deadline = time.monotonic() + DEADLINE_S
        while not any('"name": "train"' in each.read_text() for each in RECORDS.glob("*/.staging/*/events.jsonl")):
            assert process.poll() is None, "it ended before it trained"
            assert time.monotonic() < deadline, "it never trained"
            time.sleep(0.1)
        time.sleep(1.5)  # for a few samples
        process.send_signal(signal.SIGINT)
    process.wait()


def accept_ctrl_c() -> None:
    """Let Ctrl-C interrupt the process, also if a shell has started it in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main(sys.argv[1:])
