"""The machine's lock: runs that wait take turns."""

import os
import subprocess
import sys

from trainoff.runner.runner import machine_lock

MOST = 40  # turns that the other run may have meanwhile; without fairness it has any number
GREEDY = """
import itertools, sys, time
from trainoff.runner.runner import machine_lock
for turn in itertools.count():
    with machine_lock(lambda message: print("it waits", flush=True)), open(sys.argv[1], "a") as turns:
        turns.write("x")
        turns.flush()
        if turn == 0:
            print("it has the machine", flush=True)
            sys.stdin.readline()  # until the other run waits
        time.sleep(0.25)
"""


def test_runs_that_wait_take_turns(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINOFF_LOCK", f"turns-{os.getpid()}")
    turns, messages = tmp_path / "turns", []
    argv = [sys.executable, "-c", GREEDY, str(turns)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as greedy:

        def wait(sentence):
            messages.append(sentence)
            if len(messages) == 1:
                greedy.stdin.write("\n")
                greedy.stdin.flush()
            assert turns.stat().st_size < MOST, "the other run takes turn after turn"

        try:
            assert greedy.stdout.readline() == "it has the machine\n"
            with machine_lock(wait):
                had = turns.stat().st_size
                assert f"process {greedy.pid}" in messages[0]
                assert greedy.stdout.readline() == "it waits\n"
                assert turns.stat().st_size == had < MOST
                assert greedy.poll() is None
        finally:
            greedy.kill()
