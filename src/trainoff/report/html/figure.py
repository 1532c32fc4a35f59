"""One chart by itself: for notebooks, papers and READMEs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainoff.analysis import by_workload, groups, ranked
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.report.html.chart_choice import drawn
from trainoff.report.html.chart_data import Scene, Shelf
from trainoff.report.html.charts import Chart
from trainoff.report.html.style import Spec, looks
from trainoff.study import nearest

WIDTH, HEIGHT, SHARP = 640, 320, 2.0
CONFIG = {"background": "white", "view": {"stroke": None}, "font": "sans-serif"}
VEGA = "application/vnd.vegalite.v6+json"


@dataclass(frozen=True)
class Figure:
    """A chart that notebooks show by themselves. `.save(path)` writes PNG, SVG or, as .json, Vega-Lite."""

    spec: Spec

    def save(self, path: str | Path) -> Path:
        """Write it, in the format of the name's ending."""
        import vl_convert

        made = {
            ".png": lambda: vl_convert.vegalite_to_png(self.spec, scale=SHARP),
            ".svg": lambda: vl_convert.vegalite_to_svg(self.spec).encode(),
            ".json": lambda: json.dumps(self.spec).encode(),
        }
        path = Path(path)
        if path.suffix not in made:
            raise TrainoffError(f"{path}: a figure is saved as {', '.join(made)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made[path.suffix]())
        except OSError as error:
            raise TrainoffError(
                f"{path}: the figure cannot be written there ({error.strerror}); choose another"
            ) from error
        return path

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        import vl_convert

        return {VEGA: self.spec, "image/png": vl_convert.vegalite_to_png(self.spec, scale=SHARP)}


def figure(chart: Chart, choice: str | None = None) -> Figure:
    """A chart of the page as a figure of its own; a choice by its label or by what it fills in."""
    found = next((one for one in chart.choices if choice in (None, one.label, *one.holes.values())), None)
    if found is None:
        offered = ", ".join(
            dict.fromkeys(one.holes.get("x") or one.holes.get("y") or one.label for one in chart.choices)
        )
        raise TrainoffError(f"{chart.name}: there is no `{choice}` to draw; there is {offered}")
    title = {"text": chart.title, "anchor": "start"}
    return Figure({"width": WIDTH, "height": HEIGHT, **chart.drawn(found), "title": title, "config": CONFIG})


def plot(records: list[Record], folder: Path, what: str, x: str | None, workload: str | None) -> Figure:
    """The chart of that name, of the only workload or the named one; a metric's name means its learning curve."""
    found = {own[0].first.workload: own for own in by_workload(groups(records))}
    if not found:
        raise TrainoffError(f"{folder}: there are no records to plot")
    if workload is None and len(found) > 1:
        raise TrainoffError(f"there are several workloads, so say which: {', '.join(found)}")
    own = found.get(workload or next(iter(found)))
    if own is None:
        raise TrainoffError(f"no record is of `{workload}`; there is {', '.join(found)}")
    shown = looks(record.engine for record in records)
    charts = {chart.name: chart for chart in drawn(Scene(ranked(own), Shelf(folder)), shown)}
    name = "curve" if what == own[0].first.metric else what
    if name not in charts:
        close = nearest(name, list(charts))
        hint = f"did you mean `{close}`?" if close else f"there is {', '.join(charts)}"
        raise TrainoffError(f"there is no chart `{what}` of these records; {hint}")
    return figure(charts[name], x)
