"""The live view of real runs: until the end, after a kill, and into the next run."""

import json
import signal
import subprocess
from contextlib import closing

import pytest

from helpers.live_view import Listener, data, get, port_of, view
from helpers.running import HANGS_S, assert_nothing_survives, command, environment, give_permits, study

pytestmark = pytest.mark.cluster


def start(path, out, **more):
    argv = command("run", path, "--out", out)
    return subprocess.Popen(argv, env=environment(**more), stdout=subprocess.DEVNULL)


def state(*wanted):
    """Return a predicate: whether an event reports that the run is in one of these states."""
    return lambda name, content: name == "progress" and content["state"] in wanted


def is_training(name, content):
    """Return whether an event reports a trial in its training."""
    return name == "progress" and any(trial["phase"] == "train" and trial["step"] > 0 for trial in content["running"])


def test_a_run_is_shown_from_before_its_start_to_its_end(tmp_path, permits):
    path, out = study(tmp_path, "gated", more="[grid]\nseed = [0, 10, 20]"), tmp_path / "out"
    with view(out / "tiny") as address:
        port = port_of(address)
        page = Listener(port)
        name, content = page.next()
        assert (name, content["state"], content["done"], content["total"]) == ("progress", "waiting", 0, None)
        assert data(port)["records"] == []
        run = start(path, out, PERMITS=str(permits))
        events, counts, seen = [], [0], set()

        def read_event():
            events.append(page.next())
            if events[-1][0] == "records":
                counts.append(len(data(port)["records"]))
            if is_training(*events[-1]):
                seen.add(events[-1][1]["running"][0]["trial_id"])

        for done in range(3):
            while len(seen) <= done or counts[-1] < done:
                read_event()
            give_permits(permits)
        while not state("ended")(*events[-1]):
            read_event()
        assert run.wait(HANGS_S) == 0
        page.close()
        assert len(data(port)["records"]) == 3
    progress = [content for name, content in events if name == "progress"]
    states = list(dict.fromkeys(one["state"] for one in progress))
    assert [one for one in states if one != "waiting"] == ["running", "ended"]
    assert (progress[-1]["done"], progress[-1]["total"], progress[-1]["running"]) == (3, 3, [])
    assert counts == sorted(counts)
    assert {1, 2} <= set(counts), "the records came one by one"
    running = [trial for one in progress for trial in one["running"]]
    assert {trial["phase"] for trial in running} >= {"train"}
    assert len({trial["trial_id"] for trial in running}) == 3
    assert max(trial["step"] for trial in running) > 0
    assert all(trial["title"].startswith("gated on digits-mlp (single, seed") for trial in running)
    done = [one["done"] for one in progress if one["state"] == "running"]
    assert done == sorted(done)


@pytest.mark.namespace
def test_a_killed_run_is_shown_as_stopped_and_the_next_one_is_shown(tmp_path, permits):
    out = tmp_path / "out"
    hanging, quick = study(tmp_path, "scripter"), tmp_path / "next"
    quick.mkdir()
    with view(out / "tiny") as address:
        page = Listener(port := port_of(address))
        run = start(hanging, out)
        events = page.until(lambda name, content: name == "progress" and any(one["log"] for one in content["running"]))
        (trial,) = events[-1][1]["running"]
        assert trial["log"][-1] == "<script>alert(1)</script>", "as text, in JSON"
        log = get(port, f"/log/{trial['trial_id']}")
        assert b"<script>alert(1)</script>" in log.body
        assert log.headers["Content-Type"].startswith("text/plain")
        assert b"alert(1)" not in get(port).body
        run.send_signal(signal.SIGKILL)
        run.wait()
        content = page.until(state("stopped"))[-1][1]
        assert (content["done"], content["total"], content["running"]) == (0, 1, [])
        assert_nothing_survives(tmp_path)
        run = start(study(quick, "gated"), out, PERMITS=str(permits))
        page.until(state("running"))
        give_permits(permits)
        page.until(state("ended"))
        assert run.wait(HANGS_S) == 0
        page.close()
    with view(out / "tiny") as address:  # a view that was started afterwards
        with closing(Listener(port_of(address))) as page:
            name, content = page.next()
        assert (name, content["state"], content["done"]) == ("progress", "ended", 1)


@pytest.mark.namespace
def test_interrupted_and_killed_runs_are_shown_as_stopped_also_later(tmp_path):
    path, out = study(tmp_path, "sleeper"), tmp_path / "out"
    run = start(path, out)
    with view(out) as address:  # a folder of studies
        page = Listener(port_of(address))
        page.until(is_training)
        run.send_signal(signal.SIGINT)
        content = page.until(state("stopped", "ended"))[-1][1]
        assert (content["state"], content["done"], content["total"]) == ("stopped", 0, 1)
        assert run.wait(HANGS_S) == 130
        page.close()
        run = start(path, out)
        again = Listener(port_of(address))
        again.until(lambda name, content: name == "progress" and content["running"])
        again.close()
        run.kill()
        run.wait()
    with view(out) as address:
        with closing(Listener(port_of(address))) as page:
            name, content = page.next()
        assert (name, content["state"], content["total"]) == ("progress", "stopped", 1)
    assert_nothing_survives(tmp_path)
    assert json.loads(next(out.glob("tiny/*/record.json")).read_text())["status"] == "interrupted"


@pytest.mark.browser
def test_the_page_grows_during_a_run_and_shows_its_end(tmp_path, permits, browser):
    path, out = (
        study(tmp_path, "gated", "numpy", more="[limits]\ntimeout_s = 3600\n[grid]\nseed = [0, 10]"),
        tmp_path / "out",
    )
    errors = []
    with view(out / "tiny") as address:
        page = browser.new_page()
        page.set_default_timeout(1000 * HANGS_S)
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: request.url.startswith((address, "data:")) or errors.append(request.url))
        page.goto(address)
        assert page.locator("#headline").inner_text() == "There are no records here yet."
        run = start(path, out, PERMITS=str(permits))
        page.locator("#live[data-state=running]").wait_for()
        page.locator("#live", has_text="gated on digits-mlp").wait_for()
        give_permits(permits)  # the other trial waits until all processes are running
        page.locator("#board tbody tr:not(.details)").first.wait_for()
        page.locator(".unfold").first.click()
        page.locator('figure[data-name="curve"] label', has_text="samples").click()
        page.locator("#curve .log input").uncheck()
        page.locator("#curve .figures > summary").click()
        page.locator("#board thead button", has_text="train").click()
        give_permits(permits)
        page.locator("#live[data-state=ended]").wait_for()
        assert run.wait(HANGS_S) == 0
        page.wait_for_function(
            "() => [...document.querySelectorAll('#board tr')].filter(r => r.innerText.includes('2/2')).length == 2"
        )
        assert page.locator("tr.details:visible").count() == 1, "what was unfolded stays unfolded"
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
    assert errors == []
