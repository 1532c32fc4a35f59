"""One trial at a time: who waits for the machine gets it, though another run would take it again at once."""

import os
import subprocess
import sys

from trainoff.runner.runner import machine_lock

MOST = 40  # turns that the other one may have meanwhile; without taking turns it has any number
GREEDY = """
import itertools, sys, time
from trainoff.runner.runner import machine_lock
for turn in itertools.count():
    with machine_lock(lambda said: print("it waits", flush=True)), open(sys.argv[1], "a") as turns:
        turns.write("x")
        turns.flush()
        if turn == 0:
            print("it has the machine", flush=True)
            sys.stdin.readline()  # until the other one has asked
        time.sleep(0.25)
"""


def test_runs_that_wait_take_turns(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINOFF_LOCK", f"turns-{os.getpid()}")
    turns, said = tmp_path / "turns", []
    words = [sys.executable, "-c", GREEDY, str(turns)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as greedy:

        def wait(sentence):
            said.append(sentence)
            if len(said) == 1:
                greedy.stdin.write("\n")
                greedy.stdin.flush()
            assert turns.stat().st_size < MOST, "it should not have to wait for all turns of the other one"

        try:
            assert greedy.stdout.readline() == "it has the machine\n"
            with machine_lock(wait):
                had = turns.stat().st_size
                assert f"process {greedy.pid}" in said[0]
                assert greedy.stdout.readline() == "it waits\n"
                assert turns.stat().st_size == had < MOST
                assert greedy.poll() is None
        finally:
            greedy.kill()
