"""`trainoff compare` on made-up records, and the spread of repetitions on the board."""

import io
import json

import pytest
from rich.console import Console

from helpers.records import FAST, commit, timed_groups, timed_record
from helpers.running import error_line
from trainoff.cli import main
from trainoff.cli.show import board
from trainoff.records import Store

SLOW = [3.0, 3.2, 2.9, 3.1, 3.0]


def stored(folder, records):
    """Store records in the folders of their studies below a folder; return the folder."""
    for record in records:
        store = Store(folder / record.study)
        store.prepare()
        commit(store, record)
    return folder


def runs(engine, times, **more):
    return [timed_record(engine, time, seed, repetition=seed, **more) for seed, time in enumerate(times, 1)]


def output_of(capsys, *arguments):
    code = main([str(argument) for argument in ("compare", *arguments)])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    return out


def error_of(capsys, *arguments):
    return error_line(capsys, "compare", *arguments)


def test_two_engines_of_a_folder(workdir, capsys):
    stored(workdir / "out", [*runs("fast", FAST), *runs("slow", SLOW), *runs("other", SLOW)])
    out = output_of(capsys, "out", "--engines", "fast", "slow")
    assert "time to 97%: fast as a multiple of slow" in out
    assert out.splitlines()[2].split() == ["fast", "1.0", "s", "3.0", "s", "0.33", "0.32", "to", "0.35", "5", "faster"]
    assert "fast was 3.0 times faster than slow to 97% (2.9 to 3.2, n = 5)." in out
    assert "All of them did the same arithmetic" in out
    assert "other" not in out


def test_an_upgrade_is_shown_with_versions_machines_and_what_was_left_out(workdir, capsys):
    at = {"environment": {"host": "old"}}
    stored(workdir / "before", [*runs("a", SLOW, **at), *runs("b", FAST, **at), *runs("gone", FAST, **at)])
    new = {"engine_version": "3.0", "environment": {"host": "new"}, "study": "again"}
    stored(workdir / "after", [*runs("a", FAST, **new), *runs("b", [time * 1.001 for time in FAST], **new)])
    out = " ".join(output_of(capsys, "before", "after").split())
    assert "time to 97%: after as a multiple of before" in out
    assert (
        "2 settings, after compared with before: 1 faster, 1 tied; over all of them 0.58 times (geometric mean)." in out
    )
    assert "a was 3.0 in after and 2.0 in before." in out
    assert "They were not run on the same machines: new and old." in out
    assert "1 setting only in before is left out." in out
    one = output_of(capsys, "before", "after", "--engines", "a", "a")
    assert "only in" not in one
    assert "a in after was 3.0 times faster than a in before to 97%" in " ".join(one.split())


def test_every_setting_against_the_best(workdir, capsys):
    stored(workdir / "out", [*runs("fast", FAST), *runs("slow", SLOW), *runs("never", [None] * 5)])
    out = output_of(capsys, "out")
    assert "fast has the best time to 97%; of 2 others: 2 slower." in out
    rows = [line.split() for line in out.splitlines()[2:4]]
    assert [row[0] for row in rows] == ["slow", "never"]
    assert rows[1] == ["never", "never", "1.0", "s", "-", "-", "5", "slower"] or "never" in rows[1][1]


@pytest.mark.parametrize(
    ("figure", "values", "verdict", "sentence"),
    [
        ("train_s", (1.0, 2.0), "faster", "a was 2.0 times faster than b to train"),
        ("cold_s", (2.0, 1.0), "slower", "a took 2.0 times as long as b from start to end"),
        ("cpu_s", (1.0, 2.0), "less", "a used 2.0 times less CPU time than b"),
        ("peak_memory_bytes", (2_000_000, 1_000_000), "more", "a used 2.0 times the memory of b"),
        ("network_bytes", (1000, 1000), "tie", "a and b tie in their network traffic"),
        ("samples_per_s", (2000.0, 1000.0), "faster", "a trained on 2.0 times the samples per second of b"),
    ],
)
def test_other_figures_have_their_own_sentences(workdir, capsys, figure, values, verdict, sentence):
    both = [one for engine, value in zip("ab", values, strict=True) for one in runs(engine, FAST, **{figure: value})]
    stored(workdir / "out", both)
    out = output_of(capsys, "out", "--engines", "a", "b", "--figure", figure)
    assert out.splitlines()[2].split()[-1] == verdict
    assert sentence in " ".join(out.split())


def test_few_pairs_are_only_indicative(workdir, capsys):
    stored(workdir / "out", [*runs("a", FAST[:3]), *runs("b", SLOW[:3]), *runs("c", SLOW[:3])])
    out = output_of(capsys, "out", "--engines", "a", "b")
    assert out.splitlines()[2].split()[-1] == "indicative"
    assert "--repeat 5 adds pairs." in out
    every = output_of(capsys, "out")
    assert "of 2 others: 2 indicative." in every
    assert not [term for term in ("faster", "slower", "tie", "signific") if term in out + every]


def test_caveats_are_printed(workdir, capsys):
    busy = {"other_cores": 1.2}
    design = {"verdict": "different by design", "reason": "L-BFGS"}
    failed = timed_record("a", None, 9, repetition=9, status="crashed", train_s=None)
    stored(workdir / "out", [*runs("a", FAST, noise=busy), *runs("b", SLOW, equivalence=design), failed])
    out = " ".join(output_of(capsys, "out", "--engines", "a", "b", "--figure", "train_s").split())
    assert "5 of 11 trials were disturbed, such as a with seed 1: other processes kept 1.2 cores busy." in out
    assert "b solves the problem another way (L-BFGS)" in out
    assert "1 trial without this figure is in no pair." in out


def test_a_workload_without_a_reached_target_is_named(workdir, capsys):
    lost = [timed_record(engine, None, workload="mnist-cnn", time_to_target={}) for engine in "ab"]
    stored(workdir / "out", [*runs("a", FAST), *runs("b", SLOW), *lost])
    caveat = "mnist-cnn is left out: no trial reached a target; try --figure train_s."
    assert caveat in " ".join(output_of(capsys, "out").split())
    assert caveat in json.loads(json_of(capsys, "out"))["caveats"]
    assert "left out" not in output_of(capsys, "out", "--figure", "train_s")


def test_settings_are_compared_with_equal_numbers_of_workers(workdir, capsys):
    many = [one for engine in "ab" for workers in (1, 2) for one in runs(engine, FAST, mode="sync", workers=workers)]
    stored(workdir / "out", many)
    found = json.loads(json_of(capsys, "out", "--engines", "a", "b"))
    assert [(one["a"], one["b"]) for one in found["comparisons"]] == [
        ("a (sync, 1 worker)", "b (sync, 1 worker)"),
        ("a (sync, 2 workers)", "b (sync, 2 workers)"),
    ]


def json_of(capsys, *arguments):
    assert main([str(argument) for argument in ("compare", *arguments, "--json")]) == 0
    return capsys.readouterr().out


def test_json_output(workdir, capsys):
    stored(workdir / "out", [*runs("fast", FAST), *runs("never", [None] * 5)])
    found = json.loads(json_of(capsys, "out", "--engines", "never", "fast", "--target", "0.97"))
    (one,) = found["comparisons"]
    assert found["folders"] == ["out"]
    assert (one["verdict"], one["ratio"], one["reached"], one["n"]) == ("slower", None, [0, 5], 5)
    assert found["sentence"] == one["sentence"]
    assert found["caveats"]


def test_every_mistake_is_a_one_line_error(workdir, capsys):
    stored(workdir / "out", [*runs("numpy", FAST), *runs("torch", SLOW)])
    stored(workdir / "rest", runs("jax", FAST))
    stored(
        workdir / "nowhere", [timed_record("a", None, time_to_target={}), timed_record("b", None, time_to_target={})]
    )
    (workdir / "empty").mkdir()
    assert error_of(capsys, "out", "--engines", "numpy", "tourch") == (
        "--engines: out has no record of `tourch`; did you mean `torch`?"
    )
    assert error_of(capsys, "out", "--engines", "numpy", "numpy").endswith("not compared with itself; name two")
    assert error_of(capsys, "out", "rest").startswith("out and rest have no setting in common")
    assert error_of(capsys, "empty") == "empty: no records here yet; `trainoff run STUDY` makes some"
    assert error_of(capsys, "gone").startswith("gone: there is no such folder")
    assert error_of(capsys, "rest") == "rest has only one setting, and nothing to compare it with"
    assert error_of(capsys, "out", "--figure", "trains").endswith("did you mean `train_s`?")
    assert error_of(capsys, "out", "--figure", "samples_per_s").startswith("no trial here has its samples per second")
    assert error_of(capsys, "out", "--target", "0.5") == (
        "--target 0.5 was not timed; these were: 0.95, 0.97; `targets = [0.5]` in a study times this one"
    )
    assert error_of(capsys, "out", "--target", "0.9", "--figure", "cpu_s").startswith("--target belongs to --figure")
    assert error_of(capsys, "out", "out", "out").startswith("compare takes one folder or two")
    assert error_of(capsys, "nowhere").startswith("no trial reached a target")
    stored(workdir / "apart", [*runs("numpy", FAST), *runs("torch", SLOW, study="other")])
    assert error_of(capsys, "apart").startswith("no repetition was done by both within one study")


def test_the_board_shows_the_spread_of_repetitions():
    def printed(found):
        text = io.StringIO()
        Console(file=text, width=100).print(board(found, 100))
        return text.getvalue()

    out = printed(timed_groups(a=FAST, b=[None, 2.0, 3.0, 2.5, 2.0]))
    assert "0.9 to 1.1 s" in out
    assert "2.0 s to never" in out
    assert "spread" not in printed(timed_groups(a=FAST[:1], b=SLOW[:1]))
