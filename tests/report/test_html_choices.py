"""The controls of the report in a browser: axes, tables of figures, addresses, contents."""

import re
from itertools import pairwise

import pytest

from helpers.pages import write_report
from helpers.records import make_record

pytestmark = pytest.mark.browser


def test_a_logarithmic_axis_can_be_made_linear(report, open_page):
    opened = open_page(report)
    opened.draw_all()
    for name in ("curve", "target", "pareto"):
        figure = opened.page.locator(f'figure[data-name="{name}"]')
        axis = figure.locator("svg [aria-label^='X-axis']")
        assert "log scale" in axis.first.get_attribute("aria-label")
        figure.locator(".log input").uncheck()
        figure.locator("svg [aria-label^='X-axis'][aria-label*='linear scale']").first.wait_for()
    assert opened.page.locator('figure[data-name="phases"] .log').count() == 0


def test_every_point_of_a_curve_has_a_tooltip(report, open_page):
    opened = open_page(report)
    opened.draw_all()
    opened.page.locator('figure[data-name="curve"] svg .mark-symbol.role-mark path').nth(3).hover(force=True)
    tooltip = opened.page.locator("#vg-tooltip-element").inner_text()
    names = {line.split("\t")[0] for line in tooltip.splitlines()}
    assert {"seconds of training", "CPU seconds", "samples seen", "accuracy"} <= names


def test_ticks_of_accuracy_have_equal_decimal_places(tmp_path, open_page):
    close = [make_record(engine, speed=speed, test_accuracy=found) for engine, speed, found in
             (("torch", 1.0, 0.9832), ("numpy", 2.0, 0.9839), ("jax", 3.0, 0.9844))]  # fmt: skip
    opened = open_page(write_report(tmp_path / "close", close))
    opened.draw_all()
    for name, places in (("curve", 2), ("pareto", 4)):
        ticks = opened.page.locator(f"#{name} svg [aria-label^='Y-axis'] .role-axis-label text").all_text_contents()
        assert {len(tick.partition(".")[2]) for tick in ticks} == {places}, ticks


def test_the_targets_are_named_on_the_curves(report, open_page):
    opened = open_page(report)
    opened.draw_all()
    assert opened.page.locator("#curve svg .mark-text.role-mark text").all_text_contents() == ["95%", "97%"]


def table_of(figure):
    """Open the table of figures below a chart; return its headings and rows."""
    if figure.locator(".figures[open]").count() == 0:
        figure.locator(".figures > summary").click()
    figure.locator(".figures tbody").wait_for()
    rows = figure.locator(".figures tr")
    heads, *lines = [row.locator("th, td").all_inner_texts() for row in rows.all()]
    return heads, lines


def test_every_chart_has_its_figures_as_a_table(report, open_page):
    opened = open_page(report, permissions=["clipboard-read", "clipboard-write"])
    opened.draw_all()
    charts = {name: opened.page.locator(f'figure[data-name="{name}"]') for name in
              ("curve", "phases", "target", "scaling", "pareto", "resources")}  # fmt: skip
    found = {name: table_of(chart) for name, chart in charts.items()}
    heads, lines = found["curve"]
    assert heads == ["setting", "seed", "status", "seconds of training", "accuracy"]
    assert len(lines) == 8, "a line for the end of every run"
    heads, lines = found["phases"]
    assert heads == ["setting", "import", "cluster start", "train", "test", "teardown"]
    assert lines[0] == ["torch-ddp (sync, 2 workers)", "0.5000", "1", "4", "0.1000", "0.2000"]
    assert [row[-1] for row in found["target"][1]] == ["reached"] * 8
    assert [row[1] for row in found["scaling"][1]] == ["1", "2"]
    assert {row[-1] for row in found["pareto"][1]} == {"yes", "no"}
    assert [row[0] for row in found["resources"][1]] == ["driver", "worker-0"]
    charts["curve"].locator("label", has_text="samples").click()
    charts["curve"].locator(".figures th", has_text="samples seen").wait_for()
    assert table_of(charts["curve"])[1][0][3] == "240,000"
    opened.page.locator(".chip", has_text=re.compile("^torch-ddp$")).click()
    opened.page.wait_for_function("() => document.querySelectorAll('#curve .figures tbody tr').length === 4")
    assert len(opened.copy(charts["curve"].locator(".copy"))) == 5


def test_the_address_contains_the_choices(report, open_page):
    first = open_page(report)
    page = first.page
    page.locator(".chip", has_text=re.compile("^torch-ddp$")).click()
    page.locator("#curve label", has_text="samples").click()
    page.locator("#target .log input").uncheck()
    page.locator("#resources .pick").select_option("torch")
    for _ in range(2):
        page.locator("#board thead button", has_text="train").click()
    page.locator("#contents a", has_text="costs").click()
    fragment = page.evaluate("location.hash")
    opened = open_page(report, fragment=fragment)
    page = opened.page
    opened.draw_all()
    assert page.locator("#filter input:not(:checked)").evaluate_all("boxes => boxes.map((box) => box.value)") == [
        "torch-ddp"
    ]
    assert page.locator("#board tbody tr:not(.details):visible").first.inner_text().startswith("numpy")
    assert page.locator("#board th[aria-sort=descending]").inner_text().strip() == "train"
    assert "samples seen" in page.locator("#curve svg.marks").inner_html()
    assert not page.locator("#target .log input").is_checked()
    assert page.locator("#resources .pick").input_value() == "torch"
    assert page.evaluate("location.hash") == fragment
    page.locator("#everything").click()
    assert "without" not in page.evaluate("location.hash")


@pytest.mark.parametrize("fragment", ["#100%", "#at=nowhere&without=nobody&curve=parsecs&resources+of=x&board=y", "#="])
def test_an_invalid_address_shows_the_whole_page(fragment, report, open_page):
    opened = open_page(report, fragment=fragment)
    opened.draw_all()
    assert opened.page.locator("#board tbody tr:not(.details):visible").count() == 5
    assert "seconds of training" in opened.page.locator("#curve svg.marks").inner_html()


def test_a_change_of_the_address_is_applied(report, open_page):
    opened = open_page(report, fragment="#without=numpy&curve=samples")
    opened.draw_all()
    assert opened.page.locator("#board tbody tr:not(.details):visible").count() == 4
    opened.page.evaluate("location.hash = '#curve'")
    opened.page.locator("#curve svg.marks", has_text="seconds of training").wait_for()
    assert opened.page.locator("#board tbody tr:not(.details):visible").count() == 5


def test_the_contents_link_to_every_section(report, open_page):
    page = open_page(report).page
    places = page.locator("#contents a").evaluate_all("links => links.map((link) => link.hash.slice(1))")
    assert places == [
        "board", "curve", "phases", "target", "scaling", "pareto", "resources", "failures", "repeat"
    ]  # fmt: skip
    assert all(page.locator(f"#{place}").count() == 1 for place in places)
    page.locator("#contents a", has_text="costs").click()
    page.wait_for_function("() => document.getElementById('pareto').dataset.drawn === 'yes'")
    bar = page.locator("#bar").bounding_box()
    assert bar["y"] + bar["height"] <= page.locator("#pareto").bounding_box()["y"] < 200, (
        "below the bar that stays on top"
    )
    linked = open_page(report, fragment="#pareto").page
    linked.wait_for_function("() => document.getElementById('pareto').dataset.drawn === 'yes'")
    assert 0 <= linked.locator("#pareto").bounding_box()["y"] < 200, "the charts above it have their height"


def test_headings_of_the_board_have_explanations(report, open_page):
    page = open_page(report).page
    title = page.locator("#board thead button", has_text="cold").get_attribute("title")
    assert title == "seconds of the whole trial, from its first process to its last"


def test_heading_levels_are_not_skipped(report, open_page):
    levels = open_page(report).page.locator("h1, h2, h3").evaluate_all("heads => heads.map((head) => +head.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels)), levels


def test_settings_in_a_list_have_distinct_labels(tmp_path, open_page):
    records = [make_record(engine, params={"batch_size": size}) for size in (32, 64) for engine in ("torch", "numpy")]
    opened = open_page(write_report(tmp_path / "grid", records))
    opened.draw_all()
    labels = opened.page.locator("#target svg .role-axis-label text").filter(has_text="numpy")
    lines = [label.locator("tspan").all_text_contents() for label in labels.all()]
    assert lines == [["numpy", "batch size 32"], ["numpy", "batch size 64"]]
    heads = opened.page.locator("#grid svg [aria-label^='X-axis'] .role-axis-label text")
    assert heads.all_text_contents() == ["numpy", "torch"]


def test_a_legend_stays_inside_its_chart(tmp_path, open_page):
    records = [make_record("torch-ddp", mode="sync", workers=2, params={"batch_size": size, "learning_rate": rate})
               for size in (32, 64) for rate in (0.1, 0.01)]  # fmt: skip
    opened = open_page(write_report(tmp_path / "long", [*records, make_record("numpy", params={"batch_size": 32})]))
    for width in (1280, 390):
        opened.page.set_viewport_size({"width": width, "height": 900})
        opened.page.reload()
        opened.draw_all()
        for name in ("curve", "phases", "pareto"):
            chart = opened.page.locator(f"#{name}").bounding_box()
            for label in opened.page.locator(f"#{name} svg .role-legend-label text").all():
                box = label.bounding_box()
                assert box["x"] + box["width"] <= chart["x"] + chart["width"] + 1, (width, name, label.text_content())
