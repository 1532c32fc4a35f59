"""One trial at a time: who waits for the machine gets it, though another run would take it again at once."""

import os
import subprocess
import sys
import time

from trainoff.conduct.lock import machine_lock

TURNS = 40
GREEDY = f"""
import sys, time
from trainoff.conduct.lock import machine_lock
for turn in range({TURNS}):
    with machine_lock(lambda said: None):
        print(turn, flush=True)
        time.sleep(0.25)
"""


def test_runs_that_wait_take_turns(monkeypatch):
    monkeypatch.setenv("TRAINOFF_LOCK", f"turns-{os.getpid()}")
    greedy = subprocess.Popen([sys.executable, "-c", GREEDY], stdout=subprocess.PIPE, text=True)
    assert greedy.stdout.readline() == "0\n"
    said = []
    with machine_lock(said.append):
        assert greedy.poll() is None, "it should not have to have all its turns first"
        assert f"process {greedy.pid}" in said[0]
        time.sleep(0.3)
    greedy.kill()
    turns = greedy.communicate()[0].split()
    assert len(turns) < TURNS - 1
