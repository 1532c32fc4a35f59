"""The report in a browser: its content and controls, unusual engines and texts, and many records."""

import json
import re

import polars
import pytest

from helpers.pages import write_report
from helpers.records import FAULT_RECORDS, make_record, many_records, write_study_folder
from helpers.running import invoke
from trainoff.analysis import groups, ranked
from trainoff.analysis.summary import SAME
from trainoff.report.html import gather, render
from trainoff.report.html.charts import ChartContext, SeriesReader
from trainoff.report.html.charts.base import fill
from trainoff.report.html.charts.runs import read_curve
from trainoff.report.html.charts.settings import ParetoFront, Scaling, SettingGrid
from trainoff.report.html.style import COLOURS, PLUGIN_COLOURS, default_style, engine_styles

pytestmark = pytest.mark.browser

EVIL = '<img src=x onerror="window.executed=1"></script><script>window.executed=1</script>'


def test_the_first_screen_names_the_winner_and_the_caveats(report, open_page):
    page = open_page(report).page
    assert page.locator("#headline").inner_text() == "torch-ddp (sync, 2 workers) reached 97% first: 0.7 s of training."
    assert page.locator(".others").inner_text().startswith("torch took 1.4 times as long; ")
    assert "made · digits-mlp · 5 settings" in page.locator(".kicker").inner_text()
    assert "indicative" in page.locator("header .caveats").inner_text()
    rows = page.locator("#board tbody tr:not(.details)")
    assert rows.count() == 5
    assert rows.first.inner_text().split()[0] == "torch-ddp"
    assert "crashed" in rows.last.inner_text()
    assert page.locator("#headline").bounding_box()["y"] < 200
    assert page.locator("#board").bounding_box()["y"] < 500


def test_equal_arithmetic_is_not_a_caveat(tmp_path, open_page):
    clicks = {"workload": "clicks-logreg", "metric": "error", "targets": [0.25], "test_metrics": {"error": 0.2}}
    five = [
        make_record(engine, seed, speed, **more)
        for more in ({}, {**clicks, "time_to_target": {"0.25": 3.0}})
        for engine, speed in (("torch", 2.0), ("numpy", 1.0))
        for seed in range(1, 6)
    ]
    page = open_page(write_report(tmp_path / "both", five)).page
    assert page.locator(".assurance").all_inner_texts() == [SAME], "once, because it holds for both"
    assert page.locator(".caveats").count() == 0
    alone = open_page(write_report(tmp_path / "one", five[:10])).page
    assert alone.locator("#headline").inner_text() == "torch reached 97% first: 1.0 s of training."
    assert alone.locator(".others").inner_text().startswith("That is 2.0 times faster than numpy (")


def test_every_chart_has_the_marks_of_its_records(report, open_page):
    opened = open_page(report)
    opened.draw_all()
    names = [figure.get_attribute("data-name") for figure in opened.page.query_selector_all("figure.chart")]
    assert names == ["curve", "phases", "target", "scaling", "pareto", "resources"]
    assert opened.marks("curve", "line") == 8, "a line per run that trained"
    assert opened.marks("curve", "rule") == 2, "the targets"
    assert opened.marks("phases", "rect") == 5 * 5, "five phases of five settings"
    assert opened.marks("target", "symbol") == 8
    assert opened.marks("target", "rect") == 4, "the medians of settings that reached the target"
    assert opened.marks("scaling", "symbol") == 4
    assert opened.marks("pareto", "symbol") == 4
    assert opened.marks("resources", "line") == 2, "the driver and a worker"


def test_the_axis_can_be_changed(report, open_page):
    opened = open_page(report)
    opened.draw_all()
    figure = opened.page.locator('figure[data-name="curve"]')
    labels = figure.locator(".choices label").all_inner_texts()
    assert labels == ["seconds", "samples", "core-seconds", "bytes"], "money only if a price is known"
    assert "seconds of training" in figure.locator("svg.marks").inner_html()
    figure.locator("label", has_text="samples").click()
    figure.locator("svg.marks", has_text="samples seen").wait_for()
    assert opened.marks("curve", "line") == 8
    figure.locator("label", has_text="bytes").click()
    figure.locator("svg.marks", has_text="bytes over the network").wait_for()
    ticks = figure.locator("svg .role-axis-label").first.text_content()
    assert re.search(r"\d[kM]", ticks), ticks
    assert "000" not in ticks


def test_engines_can_be_hidden_and_shown_again(report, open_page):
    opened = open_page(report)
    page = opened.page
    opened.draw_all()
    page.locator(".chip", has_text=re.compile("^torch-ddp$")).click()
    assert page.locator("#board tbody tr:not(.details):visible").count() == 3
    page.wait_for_function(
        "() => document.querySelectorAll('figure[data-name=curve] svg .mark-line.role-mark path').length === 4"
    )
    legend = page.locator("figure[data-name=curve] svg .role-legend-label text")
    assert legend.all_text_contents() == ["numpy", "torch"], "only those that are drawn"
    offered = page.locator("figure[data-name=resources] .pick option:not([disabled])").all_inner_texts()
    assert offered
    assert not any(name.startswith("torch-ddp") for name in offered)
    assert page.locator("figure[data-name=resources] .pick").input_value() == offered[0]
    page.locator("#everything").click()
    assert page.locator("#board tbody tr:not(.details):visible").count() == 5


def test_every_workload_has_a_section_and_can_be_selected(tmp_path, open_page):
    clicks = {"workload": "clicks-logreg", "metric": "error", "targets": [0.25], "time_to_target": {"0.25": 3.0},
              "test_metrics": {"error": 0.2}, "test_accuracy": 0.8}  # fmt: skip
    records = [
        make_record("torch"),
        make_record("numpy", 1, 2.0),
        make_record("torch", **clicks),
        make_record("numpy", 1, 2.0, **clicks),
    ]
    opened = open_page(write_report(tmp_path / "two", records))
    page = opened.page
    assert "digits-mlp: numpy reached 97% first" in page.locator("#headline").inner_text()
    assert "clicks-logreg: numpy reached 25% error first" in page.locator("#headline").inner_text()
    assert page.locator("section.workload:visible").count() == 2
    opened.draw_all()
    page.locator("#workload").select_option("clicks-logreg")
    assert page.locator("section.workload:visible h2").all_inner_texts() == ["clicks-logreg"]
    opened.draw_all()
    assert page.locator("section.workload:visible figure[data-name=curve] .mark-line.role-mark path").count() == 2


def test_the_board_sorts_unfolds_and_copies(report, open_page):
    opened = open_page(report, permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    first = page.locator("#board tbody tr:not(.details)").first
    page.locator("#board thead button", has_text="train").click()
    assert first.inner_text().startswith("torch-ddp")
    page.locator("#board thead button", has_text="train").click()
    assert page.locator("#board th[aria-sort=descending]").count() == 1
    assert first.inner_text().startswith("numpy")
    last = page.locator("#board tbody tr:not(.details)").last
    assert last.inner_text().startswith("sklearn"), "unknown values stay last"
    first.locator(".unfold").focus()
    page.keyboard.press("Enter")
    assert "parameters" in page.locator("tr.details:visible").inner_text()
    copied = opened.copy(page.locator("#board .copy"))
    assert len(copied) == 6
    assert copied[0].split("\t")[0] == "engine"
    assert any(re.search(r"\t[\d.]+ s \([\d.]+ to [\d.]+ s\)\t", line) for line in copied), copied


def test_the_dark_theme_can_be_switched_off(report, open_page):
    opened = open_page(report, color_scheme="dark")

    def light():
        return opened.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    assert light() == "rgb(18, 22, 27)"
    button = opened.page.locator("#theme")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert light() == "rgb(255, 255, 255)"
    assert button.get_attribute("aria-pressed") == "false"
    opened.page.reload()
    assert light() == "rgb(255, 255, 255)", "the choice is remembered"
    button.click()
    assert light() == "rgb(18, 22, 27)"
    opened.draw_all()
    opened.page.emulate_media(media="print")
    assert light() == "rgb(255, 255, 255)", "paper is white"
    labels = opened.page.locator("figure.chart svg .role-axis-label text")
    assert labels.first.evaluate("text => getComputedStyle(text).fill") == "rgb(27, 31, 36)"


def test_a_narrow_screen_does_not_scroll_sideways(report, open_page):
    opened = open_page(report)
    opened.resize(375, 700)
    opened.draw_all()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 375


def test_an_engine_may_be_named_like_a_placeholder(tmp_path, open_page):
    opened = open_page(write_report(tmp_path / "placeholder", [make_record("me@x", 1, 2.0), make_record("numpy")]))
    opened.draw_all()
    legend = opened.page.locator("figure[data-name=curve] svg .role-legend-label text")
    assert legend.all_text_contents() == ["numpy", "me@x"]
    filled = fill({"scale": {"domain": ["me@x"]}, "title": "to @x", "x": ["front_@x", "@y"]}, {"x": "samples"})
    assert filled == {"scale": {"domain": ["me@x"]}, "title": "to samples", "x": ["front_samples", "@y"]}


def test_plugin_engines_have_their_own_styles():
    shipped = {(style.colour, style.shape) for style in map(default_style, COLOURS)}
    styles = [default_style(f"mine-{number}") for number in range(200)]
    assert not {style.colour for style in styles} & {colour for colour, _ in shipped}
    assert len({(style.colour, style.shape) for style in styles}) > 60, "colour and shape are independent"


def test_no_two_engines_of_a_report_have_the_same_style():
    engines = [*COLOURS, *(f"mine-{number}" for number in range(72))]
    styles = engine_styles(engines)
    assert len({(style.colour, style.shape) for style in styles}) == len(styles) == len(engines)
    same: dict[tuple[str, str], list[str]] = {}
    for style in (default_style(f"mine-{number}") for number in range(200)):
        same.setdefault((style.colour, style.shape), []).append(style.name)
    first, second, *_ = next(sorted(names) for names in same.values() if len(names) > 1)
    kept, changed = engine_styles([second, first])
    assert kept == default_style(first), "the first by name keeps the style that it has in every other report"
    assert changed.name == second
    assert changed.colour != kept.colour
    assert len(engine_styles(f"mine-{number}" for number in range(100))) == 100, "more than there are styles"


def contrast(colour: str, paper: str) -> float:
    """Return the contrast ratio of two colours as WCAG defines it."""

    def light(of: str) -> float:
        parts = [int(of[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05

    one, other = light(colour), light(paper)
    return max(one, other) / min(one, other)


@pytest.mark.parametrize("paper", ["#ffffff", "#12161b"])
def test_every_colour_has_enough_contrast_on_white_and_on_dark(paper):
    ratios = {colour: contrast(colour, paper) for colour in (*COLOURS.values(), *PLUGIN_COLOURS)}
    assert not {colour: ratio for colour, ratio in ratios.items() if ratio < 3}


def test_a_page_can_be_printed_with_all_its_charts(report, open_page):
    opened = open_page(report)
    assert len(opened.page.pdf()) > 20_000
    opened.page.wait_for_function("() => document.querySelectorAll('figure.chart:not([data-drawn])').length === 0")


def test_a_report_of_failures_only(tmp_path, open_page):
    lost = {"status": "crashed", "reason": "no", "train_s": None, "time_to_target": {}, "test_accuracy": None}
    opened = open_page(write_report(tmp_path / "lost", [make_record("torch", **lost), make_record("numpy", **lost)]))
    assert opened.page.locator("#headline").inner_text() == "No trial ended well."
    assert opened.page.locator(".failures details").count() == 2
    opened.draw_all()


def test_the_report_of_an_empty_folder(tmp_path, open_page):
    opened = open_page(write_report(tmp_path / "empty", []))
    assert opened.page.locator("#headline").inner_text() == "There are no records here yet."


def test_html_in_records_is_shown_and_not_executed(tmp_path, open_page):
    lost = {"status": "crashed", "reason": EVIL, "log_tail": EVIL, "traceback": None, "train_s": None,
            "time_to_target": {}, "test_accuracy": None}  # fmt: skip
    evil = make_record(EVIL, params={"epochs": 4, "note": EVIL}, notes={"x": EVIL}, cpu_s_by_role={EVIL: 1.0})
    path = write_report(
        tmp_path / "evil",
        [evil, make_record("numpy", params={"epochs": 4, "note": "no"}), make_record("torch", **lost)],
    )
    (tmp_path / "evil" / "study.toml").write_text(f"# trainoff run {EVIL}\n{EVIL}")
    path.write_text(render(gather(tmp_path / "evil")))
    opened = open_page(path)
    opened.draw_all()
    for button in opened.page.query_selector_all(".unfold"):
        button.click()
    for summary in opened.page.query_selector_all(".failures summary, .fold > summary"):
        summary.click()
    assert opened.page.evaluate("window.executed") is None
    assert opened.page.locator(".failures pre").inner_text() == EVIL
    assert EVIL in opened.page.locator("#repeat .fold pre").inner_text()
    mark = opened.page.locator('figure[data-name="pareto"] svg .mark-symbol path').first
    mark.hover(force=True)
    assert opened.page.evaluate("window.executed") is None


def test_the_report_of_a_thousand_records_is_small_and_usable(tmp_path, open_page):
    path = write_report(tmp_path / "many", list(many_records(1000)), points=40, ticks=0)
    assert path.stat().st_size < 8e6
    opened = open_page(path)
    opened.draw_all()
    visible = opened.page.locator("#board tbody tr:not(.details):visible")
    assert visible.count() == 25
    engines = opened.page.locator(".chip").all_inner_texts()
    best = visible.first.inner_text().split()[0]
    opened.page.locator(".chip", has_text=re.compile(f"^{best}$")).click()
    assert visible.count() == 25, "the next ones have moved up"
    left = int(opened.page.locator(".more").inner_text().removeprefix("show all "))
    assert left == 200 - 200 // len(engines)
    opened.page.locator("#everything").click()
    heads = opened.page.locator("#board thead th").all_inner_texts()
    values = f"rows => rows.map(row => Number(row.cells[{heads.index('train')}].dataset.value))"
    for _ in range(2):
        opened.page.locator("#board thead button", has_text="train").click()
    slowest = sorted(opened.page.locator("#board tbody tr:not(.details)").evaluate_all(values), reverse=True)
    assert visible.evaluate_all(values) == slowest[:25], "the slowest of all, not of the first 25"
    opened.page.locator(".more").click()
    assert visible.count() == 200


def test_the_command_writes_html_png_and_markdown(tmp_path):
    folder = write_study_folder(tmp_path / "made", [make_record("torch", 1, 2.0), make_record("numpy", 1)])
    done = invoke("report", folder, "--png", tmp_path / "png", "--usd-per-core-hour", "0.05")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"Report: {folder / 'report.html'}"
    text = (folder / "report.html").read_text()
    assert "US dollars" in text
    pictures = sorted(path.name for path in (tmp_path / "png").iterdir())
    assert pictures == [f"digits-mlp-{name}.png" for name in ("curve", "pareto", "phases", "resources", "target")]
    assert all((tmp_path / "png" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert invoke("report", folder, "--markdown").returncode == 0
    assert "| torch | single | 1 |" in (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        ([".", "--usd-per-core-hour", "-1"], "expected a price above 0"),
        (["made", "-o", "/proc/report.html"], "the report cannot be written there"),
        (["made", "-o", "made/numpy.txt/x.html"], "the report cannot be written there"),
        (["made", "-o", "."], ".: this is a folder; name a file with -o"),
        (["empty"], "empty: no records here yet; `trainoff run STUDY` makes some"),
        (["made/numpy.txt"], "made/numpy.txt: this is a file, not a folder of records"),
    ],
)
def test_mistakes_are_one_line_errors(tmp_path, arguments, sentence):
    (write_study_folder(tmp_path / "made", [make_record("numpy", 1)]) / "numpy.txt").touch()
    (tmp_path / "empty").mkdir()
    done = invoke("report", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def context_of(records, folder):
    return ChartContext(ranked(groups(records)), SeriesReader(folder))


def test_no_network_traffic_beats_some(tmp_path):
    context = context_of(
        [make_record("numpy", test_accuracy=0.99, network_bytes=0), make_record("torch-ddp", network_bytes=10**9)],
        tmp_path,
    )
    rows = {row["engine"]: row for row in ParetoFront(context).data["pareto"]}
    assert not rows["torch-ddp"]["front_bytes"]
    assert rows["numpy"]["bytes"] is None, "zero has no place on a logarithmic axis"


def test_a_curve_has_only_the_points_that_were_evaluated(tmp_path):
    one = make_record("spark-mllib")
    folder = write_study_folder(tmp_path, [one])
    path = folder / one.trial_id / "curve.parquet"
    not_evaluated = polars.DataFrame({"step": [3], "samples_seen": [9], "train_s": [0.1]})
    polars.concat([polars.read_parquet(path), not_evaluated], how="diagonal").write_parquet(path)
    points = read_curve(one, SeriesReader(folder), 100)
    assert len(points) == 10
    assert points[-1]["y"] == one.test_accuracy


def test_settings_of_one_engine_have_their_own_styles(tmp_path):
    one = context_of([make_record("numpy", params={"batch_size": size}) for size in (32, 64)], tmp_path)
    assert {style.field for style in one.styles} == {"name"}
    assert len({(style.colour, style.shape) for style in one.styles}) == 2
    assert [one.name(group) for group in one.groups] == [style.name for style in one.styles]
    assert not any("numpy" in style.name for style in one.styles), "all settings have this engine"
    two = context_of(
        [make_record(engine, params={"batch_size": size}) for size in (32, 64) for engine in COLOURS], tmp_path
    )
    assert two.setting_styles == []


def test_medians_of_scaling_include_runs_that_did_not_reach_the_target(tmp_path):
    never = {"time_to_target": {"0.95": 1.0, "0.97": None}}
    two = [make_record("torch-ddp", seed, mode="sync", workers=2, **(never if seed > 1 else {})) for seed in (1, 2, 3)]
    one = [make_record("torch-ddp", seed, mode="sync", workers=1) for seed in (1, 2, 3)]
    rows = Scaling(context_of([*one, *two], tmp_path)).data["scaled"]
    assert [(row["workers"], row["time"]) for row in rows] == [(1, 2.0), (2, None)]


def test_a_wrong_result_has_no_cell_in_the_grid(tmp_path):
    wrong = make_record("torch", params={"epochs": 8}, status="wrong-result", test_accuracy=0.999)
    records = [make_record("torch"), make_record("numpy"), make_record("numpy", params={"epochs": 8}), wrong]
    rows = SettingGrid(context_of(records, tmp_path)).data["grid"]
    assert [row["quality"] for row in rows] == [0.98, 0.98, 0.98]


def test_figures_for_notebooks(tmp_path):
    from trainoff import load
    from trainoff.errors import TrainoffError

    results = load(write_study_folder(tmp_path / "made", [make_record("torch", 1, 2.0), make_record("numpy", 1)]))
    shown = results.plot("accuracy", x="core_s")
    assert shown.spec["layer"][1]["encoding"]["x"]["field"] == "core_s"
    assert len(shown.spec["datasets"]["curves"]) == 18, "from an accuracy of a half on"
    assert shown._repr_mimebundle_()["image/png"].startswith(b"\x89PNG")
    assert json.loads(shown.save(tmp_path / "curve.json").read_text())["datasets"]
    with pytest.raises(TrainoffError, match="did you mean `phases`"):
        results.plot("phase")
    with pytest.raises(TrainoffError, match="there is train_s, samples, core_s"):
        results.plot("curve", x="parsecs")


def test_faults_are_marked_on_the_curves_and_listed_in_a_table(tmp_path, open_page):
    opened = open_page(write_report(tmp_path / "made", FAULT_RECORDS))
    opened.page.wait_for_function("() => document.querySelector('figure.chart').dataset.drawn === 'yes'")
    marks = opened.page.locator('figure[data-name="curve"] svg [aria-label*="noticed after"]')
    assert marks.count() == 5, "four faults, of which one was healed"
    assert opened.page.locator(".faults tbody tr").count() == 4
    opened.page.locator('label.chip:has-text("torch-ddp")').click()
    assert opened.page.locator(".faults tbody tr:visible").count() == 2, "the filter applies here, too"


def test_a_damaged_curve_is_named_and_the_others_are_drawn(tmp_path):
    folder = write_study_folder(tmp_path, [make_record("numpy"), make_record("torch")])
    broken = next(folder.glob("numpy*/curve.parquet"))
    broken.write_bytes(b"no curve")
    content = gather(folder)
    (error,) = content.damaged
    assert str(broken) in error
    assert "this file is damaged" in error
    curves = next(chart for chart in content.workloads[0].charts if chart.name == "curve")
    assert {row["engine"] for row in curves.data["curves"]} == {"torch"}
