"""The report as one self-contained HTML file: the result, the leader board, charts of every run, and every failure.

A chart of it is also a figure for notebooks and pictures.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainoff.analysis import by_workload, groups, ranked
from trainoff.data import cache
from trainoff.errors import TrainoffError
from trainoff.files import atomic_write, write_output, writing
from trainoff.records import Record
from trainoff.report.html.charts import Chart, ChartContext, SeriesReader, charts_of
from trainoff.report.html.content import MEANINGS, Content, as_script, compose, gather
from trainoff.report.html.style import Spec, engine_styles
from trainoff.runner.equivalence import EXACT, TOLERATED
from trainoff.study import nearest

__all__ = ["CONFIG", "ChartFigure", "Content", "compose", "figure", "gather", "plot", "render"]

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("chart.js", "tables.js", "link.js", "page.js")  # in this order, in one element


def render(content: Content, live: bool = False) -> str:
    """Return the page as HTML. A live page asks its server for news; any other makes no request."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = [chart for workload in content.workloads for chart in workload.charts]
    return environment.get_template("page.html").render(
        content=content,
        live=live,
        meanings=MEANINGS,
        exact=EXACT,
        tolerated=TOLERATED,
        charts=as_script([_as_json(chart) for chart in charts]),
        style=(TEMPLATES / "style.css").read_text(),
        script="\n".join((TEMPLATES / name).read_text() for name in (*SCRIPTS, *(["live.js"] if live else []))),
        library=library() if charts or live else "",
    )


def _as_json(chart: Chart) -> dict[str, Any]:
    return {
        "spec": chart.spec,
        "about": f"{chart.title}. {chart.about}",
        "choices": [{"placeholders": choice.placeholders, "only": choice.only} for choice in chart.choices],
        "table": asdict(chart.table),
        "pick": chart.pick,
        "listed": chart.listed,
        "data": {name: pack(rows) for name, rows in chart.data.items()},
    }


def pack(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows as columns, and texts as indices of a list: a third of the size. The page unpacks them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {"rows": len(rows), "columns": {name: _column([row.get(name) for row in rows]) for name in names}}


def _column(values: list[Any]) -> dict[str, Any]:
    if not any(isinstance(value, str) for value in values):
        return {"values": values}
    indices = {value: index for index, value in enumerate(dict.fromkeys(values))}
    return {"texts": list(indices), "at": [indices[value] for value in values]}


@lru_cache(maxsize=1)
def library() -> str:
    """Return the chart library as one self-contained script; it is built once per version and then cached."""
    import vl_convert

    cached = cache.root() / "charts" / f"vega-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError):
        return cached.read_text()
    bundle: str = vl_convert.javascript_bundle("window.embedChart = vegaEmbed;").replace("</script", "<\\/script")
    with contextlib.suppress(OSError):  # such as a full disk: then it is built again the next time
        cached.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(cached, bundle)
    return bundle


WIDTH, HEIGHT, SCALE = 640, 320, 2.0
CONFIG = {"background": "white", "view": {"stroke": None}, "font": "sans-serif"}
VEGA = "application/vnd.vegalite.v6+json"


@dataclass(frozen=True)
class ChartFigure:
    """A chart that notebooks display. `.save(path)` writes PNG, SVG or, as .json, Vega-Lite."""

    spec: Spec

    def save(self, path: str | Path) -> Path:
        """Write the figure in the format of the file name's suffix."""
        import vl_convert

        formats = {
            ".png": lambda: vl_convert.vegalite_to_png(self.spec, scale=SCALE),
            ".svg": lambda: vl_convert.vegalite_to_svg(self.spec).encode(),
            ".json": lambda: json.dumps(self.spec).encode(),
        }
        path = Path(path)
        if path.suffix not in formats:
            raise TrainoffError(f"{path}: a figure is saved as {', '.join(formats)}")
        with writing(path, "figure"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_output(path, formats[path.suffix]())
        return path

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        import vl_convert

        return {VEGA: self.spec, "image/png": vl_convert.vegalite_to_png(self.spec, scale=SCALE)}


def figure(chart: Chart, choice: str | None = None) -> ChartFigure:
    """Return a chart as a figure, with a choice by its label or by the column that it shows."""
    choices = chart.choices
    chosen = next((one for one in choices if choice in (None, one.label, *one.placeholders.values())), None)
    if chosen is None:
        columns = [one.placeholders.get("x") or one.placeholders.get("y") or one.label for one in choices]
        raise TrainoffError(f"{chart.name}: there is no `{choice}`; there is {', '.join(dict.fromkeys(columns))}")
    title = {"text": chart.title, "anchor": "start"}
    return ChartFigure({"width": WIDTH, "height": HEIGHT, **chart.vega_lite(chosen), "title": title, "config": CONFIG})


def plot(records: list[Record], folder: Path, what: str, x: str | None, workload: str | None) -> ChartFigure:
    """Return the chart of that name, of the only workload or the named one; a metric stands for its learning curve."""
    workloads = {found[0].first.workload: found for found in by_workload(groups(records))}
    if not workloads:
        raise TrainoffError(f"{folder}: there are no records to plot")
    if workload is None and len(workloads) > 1:
        raise TrainoffError(f"there are several workloads; choose one of {', '.join(workloads)}")
    found = workloads.get(workload or next(iter(workloads)))
    if found is None:
        raise TrainoffError(f"there are no records of `{workload}`; there is {', '.join(workloads)}")
    styles = engine_styles(record.engine for record in records)
    charts = {chart.name: chart for chart in charts_of(ChartContext(ranked(found), SeriesReader(folder), styles))}
    name = "curve" if what == found[0].first.metric else what
    if name not in charts:
        close = nearest(name, list(charts))
        hint = f"did you mean `{close}`?" if close else f"there is {', '.join(charts)}"
        raise TrainoffError(f"there is no chart `{what}` of these records; {hint}")
    return figure(charts[name], x)
