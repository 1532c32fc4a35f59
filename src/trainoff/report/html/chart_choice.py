"""Which charts a workload gets: those that its records can fill, each with the choices that make sense for them."""

from __future__ import annotations

from collections.abc import Sequence

from trainoff.analysis import headline_target
from trainoff.analysis.format import mark
from trainoff.records import METRICS
from trainoff.report.html import chart_data, charts
from trainoff.report.html.chart_data import ChartContext
from trainoff.report.html.charts import Chart, ChartChoice, ChartTable, Rows
from trainoff.report.html.style import DASHES, Look, looks_of_settings

LOG, LINEAR = "log", "linear"
LEARNT = 0.5
LISTED = 60  # settings that get a line each
AXES = {  # what a curve or a front can be drawn against: label, title of the axis
    "train_s": ("seconds", "seconds of training"),
    "samples": ("samples", "samples seen"),
    "core_s": ("core-seconds", "CPU seconds of training"),
    "cpu_s": ("core-seconds", "CPU seconds of the whole trial"),
    "memory": ("memory", "bytes of memory at most"),
    "bytes": ("bytes", "bytes over the network"),
    "usd": ("money", "US dollars"),
}
USED = {"cores": ("CPU", "cores busy"), "memory": ("memory", "MB of memory"), "sent": ("network", "MB a second")}


def drawn(context: ChartContext, looks: Sequence[Look]) -> list[Chart]:
    """The charts of one workload in the order of the page."""
    looks = looks_of(context) or looks
    found = [
        _curve(context, looks),
        _phases(context),
        _target(context, looks),
        _scaling(context, looks),
        _pareto(context, looks),
        _grid(context),
        _resources(context),
    ]
    return [chart for chart in found if chart and chart.choices and any(chart.data.values())]


def looks_of(context: ChartContext) -> list[Look]:
    """The looks of the settings where nothing else tells them apart; else none."""
    return looks_of_settings([context.name(group) for group in context.groups]) if context.alike else []


def _against(data: Rows, names: Sequence[str]) -> list[ChartChoice]:
    """The axes for which there are figures."""
    return [
        ChartChoice(AXES[name][0], {"x_title": AXES[name][1], "x_scale": LOG, "x": name})
        for name in names
        if any(row.get(name) for row in data)
    ]


def _curve(context: ChartContext, looks: Sequence[Look]) -> Chart:
    first, every = context.groups[0].first, chart_data.curve_rows(context)
    low = _low(context, every)
    data = chart_data.above(every, low)
    targets = [chart_data.graded({"y": target, "label": mark(first.metric, target)}) for target in first.targets]
    faults = {f"{record.trial_id}.{record.attempt}": record.fault for _, record in context.runs if record.fault}
    struck = charts.fault_rows(data, faults)
    seen = [row for row in data if row["train_s"]]
    spec = charts.curve(looks, first.metric, len(seen))
    more = " A cross: a fault was done; a diamond: it was healed." if struck else ""
    return Chart(
        "curve",
        f"{first.metric.capitalize()} against what it took",
        f"{_line_of(context)} It ends in a mark, hollow where the trial failed. Dotted across: the targets."
        + _dashes(context)
        + more,
        {"layer": [*spec["layer"], charts.layer(looks, first.metric)]} if struck else spec,
        {
            "curves": seen,
            "targets": targets,
            **({"faults": struck} if struck else {}),
        },
        _against(data, ("train_s", "samples", "core_s", "bytes", "usd")),
        ChartTable(
            "curves",
            [("name", "setting"), ("seed", "seed"), ("status", "ended"), ("@x", "@x_title"), ("y", first.metric)],
            only={"last": True},
        ),
    )


def _dashes(context: ChartContext) -> str:
    """What the dashes of lines mean, where there are several kinds."""
    found = {group.first.mode for group in context.groups}
    told = [f"{words} {mode}" for mode, (_, words) in DASHES.items() if mode in found]
    return f" Lines: {', '.join(told)}." if len(found) > 1 and told else ""


def _line_of(context: ChartContext) -> str:
    few = len(context.runs) <= chart_data.MOST_RUNS
    return "A line per run." if few else "A line per setting: the median of its runs."


def _cut(about: str, context: ChartContext, most: int) -> str:
    """What a chart is about, and that it leaves settings out."""
    every = len(context.groups)
    return about if every <= most else f"{about} The best {most} of {every} settings."


def _low(context: ChartContext, data: Rows) -> float | None:
    """An accuracy below which a curve need not be seen; None where some run never got above it."""
    ends = [row["y"] for row in data if row["last"] and row["y"] is not None]
    return LEARNT if context.groups[0].first.metric == "accuracy" and ends and min(ends) > LEARNT else None


def _target(context: ChartContext, looks: Sequence[Look]) -> Chart:
    first, best = context.groups[0].first, headline_target(context.groups)
    about = _cut(
        "Every run is a mark, the bar a setting's median with its interval. Hollow: ended there without the target.",
        context,
        LISTED,
    )
    context = context.best(LISTED)
    data, order = chart_data.run_rows(context), [context.name(group) for group in context.groups]
    badness = METRICS[first.metric].badness
    targets = sorted({row["target"] for row in data}, key=lambda target: (target != best, badness(target)))
    return Chart(
        "target",
        "Time to the target",
        about,
        charts.target(looks, order),
        {"runs": data, "medians": chart_data.median_rows(context)},
        [ChartChoice(mark(first.metric, target), {"x_scale": LOG}, {"target": target}) for target in targets],
        ChartTable(
            "runs", [("name", "setting"), ("seed", "seed"), ("s", "seconds of training"), ("outcome", "outcome")]
        ),
        listed="name",
    )


def _phases(context: ChartContext) -> Chart:
    about = _cut("The median of each setting's runs, from its first process to its last.", context, LISTED)
    context = context.best(LISTED)
    return Chart(
        "phases",
        "Where the time went",
        about,
        charts.phases([context.name(group) for group in context.groups]),
        {"phases": chart_data.phase_rows(context)},
        [ChartChoice("seconds", {"stack": "zero"}), ChartChoice("shares", {"stack": "normalize"})],
        ChartTable("phases", [("name", "setting")], across=("phase", "seconds")),
        listed="name",
    )


def _scaling(context: ChartContext, looks: Sequence[Look]) -> Chart:
    target = headline_target(context.groups)
    data = chart_data.scaling_rows(context, target)
    first = context.groups[0].first
    offered = {"speed": ("speed", "samples a second"), "train_s": ("training", "seconds of training")}
    if target is not None:
        offered["time"] = ("time to target", f"seconds to {mark(first.metric, target)}")
    return Chart(
        "scaling",
        "What more workers bring",
        "Points are runs, lines join the medians of what differs in nothing but the workers.",
        charts.scaling(looks),
        {"scaling": data, "scaled": chart_data.scaled_rows(context, target)},
        [
            ChartChoice(label, {"y_title": title, "y": name})
            for name, (label, title) in offered.items()
            if _any(data, name)
        ],
        ChartTable("scaled", [("name", "setting"), ("workers", "workers"), ("@y", "@y_title")]),
    )


def _any(data: Rows, name: str) -> bool:
    return any(row.get(name) is not None for row in data)


def _pareto(context: ChartContext, looks: Sequence[Look]) -> Chart | None:
    data = chart_data.pareto_rows(context)
    metric = context.groups[0].first.metric
    return Chart(
        "pareto",
        f"What {metric} costs",
        "A mark per setting. The line joins those that nothing beats in both. What takes none has no mark.",
        charts.pareto(looks, metric),
        {"pareto": data},
        _against(data, ("train_s", "cpu_s", "memory", "bytes", "usd")),
        ChartTable(
            "pareto", [("name", "setting"), ("@x", "@x_title"), ("y", metric), ("front_@x", "nothing beats it")]
        ),
    )


def _grid(context: ChartContext) -> Chart:
    target = headline_target(context.groups)
    data, metric = chart_data.grid_rows(context, target), context.groups[0].first.metric
    offered = {"time": (f"time to {mark(metric, target)}" if target is not None else "", "blues", LOG),
               "quality": (metric, "greens", LINEAR), "train_s": ("training", "blues", LOG),
               "memory": ("memory", "oranges", LOG)}  # fmt: skip
    return Chart(
        "grid",
        "Every setting that was tried",
        "Darker is more. Empty: not tried, failed, or never got there.",
        charts.grid(list(dict.fromkeys(row["row"] for row in data)), _columns(data)),
        {"grid": data},
        [
            ChartChoice(
                label, {"v_text": f"{name}_text", "v_title": label, "v_scale": scale, "scheme": scheme, "v": name}
            )
            for name, (label, scheme, scale) in offered.items()
            if _any(data, name)
        ],
        ChartTable("grid", [("row", "setting")], across=("column", "@v_text")),
        listed="row",
    )


def _columns(data: Rows) -> list[str]:
    """The headings of the grid: engines as they are ranked, each with its workers in order."""
    engines = list(dict.fromkeys(row["engine"] for row in data))
    order = sorted(data, key=lambda row: (engines.index(row["engine"]), row["workers"], row["column"]))
    return list(dict.fromkeys(row["column"] for row in order))


def _resources(context: ChartContext) -> Chart:
    data = chart_data.resource_rows(context)
    return Chart(
        "resources",
        "What a trial used while it ran",
        _cut("One run of a setting, role by role.", context, chart_data.SHOWN),
        charts.resources(),
        {"resources": data, "used": chart_data.used_rows(data)},
        [
            ChartChoice(label, {"y_title": title, "y": name})
            for name, (label, title) in USED.items()
            if _any(data, name)
        ],
        ChartTable("used", [("role", "role"), ("@y", "@y_title, median"), ("most_@y", "at most")]),
        pick="name",
    )
