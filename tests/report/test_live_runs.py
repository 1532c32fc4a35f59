"""The live view during real runs: until the end, through a kill, and into the next run."""

import json
import signal
import subprocess
from contextlib import closing
from uuid import uuid4

import pytest

from helpers.live_view import Listener, data, get, port_of, view
from helpers.running import HANGS_S, assert_nothing_survives, command, environment, study

pytestmark = pytest.mark.cluster


def give_permit(permits):
    (permits / uuid4().hex).touch()


def start(path, out, **more):
    words = command("run", path, "--out", out)
    return subprocess.Popen(words, env=environment(**more), stdout=subprocess.DEVNULL)


def state(*wanted):
    """Whether an event tells that the run is in one of these states."""
    return lambda name, told: name == "progress" and told["state"] in wanted


def under_way(name, told):
    """Whether an event tells of a trial in its training."""
    return name == "progress" and any(trial["phase"] == "train" and trial["step"] > 0 for trial in told["running"])


def test_a_run_is_watched_from_before_its_beginning_until_its_end(tmp_path, permits):
    path, out = study(tmp_path, "gated", more="[grid]\nseed = [0, 10, 20]"), tmp_path / "out"
    with view(out / "tiny") as address:
        port = port_of(address)
        page = Listener(port)
        name, told = page.next()
        assert (name, told["state"], told["done"], told["total"]) == ("progress", "waiting", 0, None)
        assert data(port)["records"] == []
        run = start(path, out, PERMITS=str(permits))
        heard, grown, seen = [], [0], set()

        def hear():
            heard.append(page.next())
            if heard[-1][0] == "records":
                grown.append(len(data(port)["records"]))
            if under_way(*heard[-1]):
                seen.add(heard[-1][1]["running"][0]["trial_id"])

        for done in range(3):
            while len(seen) <= done or grown[-1] < done:
                hear()
            give_permit(permits)
        while not state("ended")(*heard[-1]):
            hear()
        assert run.wait(HANGS_S) == 0
        page.close()
        assert len(data(port)["records"]) == 3
    told = [what for name, what in heard if name == "progress"]
    states = list(dict.fromkeys(one["state"] for one in told))
    assert [one for one in states if one != "waiting"] == ["running", "ended"]
    assert (told[-1]["done"], told[-1]["total"], told[-1]["running"]) == (3, 3, [])
    assert grown == sorted(grown)
    assert {1, 2} <= set(grown), "the records came one by one"
    running = [trial for one in told for trial in one["running"]]
    assert {trial["phase"] for trial in running} >= {"train"}
    assert len({trial["trial_id"] for trial in running}) == 3
    assert max(trial["step"] for trial in running) > 0
    assert all(trial["title"].startswith("gated on digits-mlp (single, seed") for trial in running)
    done = [one["done"] for one in told if one["state"] == "running"]
    assert done == sorted(done)


@pytest.mark.namespace
def test_a_killed_run_is_told_as_stopped_and_the_next_one_is_seen(tmp_path, permits):
    out = tmp_path / "out"
    hanging, quick = study(tmp_path, "scripter"), tmp_path / "next"
    quick.mkdir()
    with view(out / "tiny") as address:
        page = Listener(port := port_of(address))
        run = start(hanging, out)
        heard = page.until(lambda name, told: name == "progress" and told["running"] and told["running"][0]["log"])
        (trial,) = heard[-1][1]["running"]
        assert trial["log"][-1] == "<script>alert(1)</script>", "as text, in JSON"
        log = get(port, f"/log/{trial['trial_id']}")
        assert b"<script>alert(1)</script>" in log.body
        assert log.headers["Content-Type"].startswith("text/plain")
        assert b"alert(1)" not in get(port).body
        run.send_signal(signal.SIGKILL)
        run.wait()
        told = page.until(state("stopped"))[-1][1]
        assert (told["done"], told["total"], told["running"]) == (0, 1, [])
        assert_nothing_survives(tmp_path)
        run = start(study(quick, "gated"), out, PERMITS=str(permits))
        page.until(state("running"))
        give_permit(permits)
        page.until(state("ended"))
        assert run.wait(HANGS_S) == 0
        page.close()
    with view(out / "tiny") as address:  # a view that was not there meanwhile
        with closing(Listener(port_of(address))) as page:
            name, told = page.next()
        assert (name, told["state"], told["done"]) == ("progress", "ended", 1)


@pytest.mark.namespace
def test_a_view_that_comes_later_tells_a_killed_run_and_an_interrupted_one_is_stopped(tmp_path):
    path, out = study(tmp_path, "sleeper"), tmp_path / "out"
    run = start(path, out)
    with view(out) as address:  # a folder of studies
        page = Listener(port_of(address))
        page.until(under_way)
        run.send_signal(signal.SIGINT)
        told = page.until(state("stopped", "ended"))[-1][1]
        assert (told["state"], told["done"], told["total"]) == ("stopped", 0, 1)
        assert run.wait(HANGS_S) == 130
        page.close()
        run = start(path, out)
        again = Listener(port_of(address))
        again.until(lambda name, told: name == "progress" and told["running"])
        again.close()
        run.kill()
        run.wait()
    with view(out) as address:
        with closing(Listener(port_of(address))) as page:
            name, told = page.next()
        assert (name, told["state"], told["total"]) == ("progress", "stopped", 1)
    assert_nothing_survives(tmp_path)
    assert json.loads(next(out.glob("tiny/*/record.json")).read_text())["status"] == "interrupted"


@pytest.mark.browser
def test_the_page_grows_while_a_study_runs_and_says_when_it_has_ended(tmp_path, permits, browser):
    path, out = (
        study(tmp_path, "gated", "numpy", more="[limits]\ntimeout_s = 3600\n[grid]\nseed = [0, 10]"),
        tmp_path / "out",
    )
    wrong = []
    with view(out / "tiny") as address:
        page = browser.new_page()
        page.set_default_timeout(1000 * HANGS_S)
        page.on("console", lambda said: wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith((address, "data:")) or wrong.append(asked.url))
        page.goto(address)
        assert page.locator("#headline").inner_text() == "There are no records here yet."
        run = start(path, out, PERMITS=str(permits))
        page.locator("#live[data-state=running]").wait_for()
        page.locator("#live", has_text="gated on digits-mlp").wait_for()
        give_permit(permits)  # the other trial waits until all processes are running
        page.locator("#board tbody tr:not(.details)").first.wait_for()
        page.locator(".unfold").first.click()
        page.locator('figure[data-name="curve"] label', has_text="samples").click()
        page.locator("#curve .log input").uncheck()
        page.locator("#curve .figures > summary").click()
        page.locator("#board thead button", has_text="train").click()
        give_permit(permits)
        page.locator("#live[data-state=ended]").wait_for()
        assert run.wait(HANGS_S) == 0
        page.wait_for_function(
            "() => [...document.querySelectorAll('#board tr')].filter(r => r.innerText.includes('2/2')).length == 2"
        )
        assert page.locator("tr.details:visible").count() == 1, "what was unfolded stays so"
        assert page.locator("#board th[aria-sort=ascending]").inner_text().strip() == "train"
        assert page.evaluate("document.activeElement.dataset.key") == "sort train"
        assert page.locator('figure[data-name="curve"] .choices label:has(:checked)').inner_text() == "samples"
        assert not page.locator("#curve .log input").is_checked()
        assert page.locator("#live [aria-live]").all_inner_texts() == ["the run has ended · 4 of 4 trials"]
        assert page.locator("#live .trial").count() == 0
        page.locator('figure[data-name="curve"]').scroll_into_view_if_needed()
        page.locator('figure[data-name="curve"][data-drawn] svg .mark-line.role-mark path').nth(3).wait_for()
        assert page.locator("#curve .figures tbody tr:visible").count() == 4, "the table has grown, too"
        page.close()
    assert wrong == []
