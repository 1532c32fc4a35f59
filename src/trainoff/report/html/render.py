"""Sets the page: fills the template, and puts style, script, charts and their library inside."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainoff.analysis import by_workload, groups, ranked
from trainoff.analysis.bottleneck import HEADINGS as NODE_HEADINGS
from trainoff.data import cache
from trainoff.errors import TrainoffError
from trainoff.files import atomic_write
from trainoff.records import Record
from trainoff.report.html.chart_data import ChartContext, SeriesCache, pack
from trainoff.report.html.charts import Chart, drawn
from trainoff.report.html.content import MEANINGS, Content, as_script
from trainoff.report.html.style import Spec, looks
from trainoff.study import nearest

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("chart.js", "tables.js", "link.js", "page.js")  # one after the other in one element


def render(content: Content, live: bool = False) -> str:
    """The page as one HTML text. A live one asks its server for news; the other asks nobody for anything."""
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
        node_headings=NODE_HEADINGS,
        meanings=MEANINGS,
        charts=as_script([_packed(chart) for chart in charts]),
        style=(TEMPLATES / "style.css").read_text(),
        script="\n".join((TEMPLATES / name).read_text() for name in (*SCRIPTS, *(["live.js"] if live else []))),
        library=library() if charts or live else "",
    )


def _packed(chart: Chart) -> dict[str, Any]:
    return {
        "spec": chart.spec,
        "about": f"{chart.title}. {chart.about}",
        "choices": [{"holes": choice.holes, "only": choice.only} for choice in chart.choices],
        "table": asdict(chart.table),
        "pick": chart.pick,
        "listed": chart.listed,
        "data": {name: pack(rows) for name, rows in chart.data.items()},
    }


@lru_cache(maxsize=1)
def library() -> str:
    """The chart library as one script that needs nothing from elsewhere; put together once per version of it."""
    import vl_convert

    kept = cache.root() / "charts" / f"vega-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError):
        return kept.read_text()
    bundle: str = vl_convert.javascript_bundle("window.embedChart = vegaEmbed;").replace("</script", "<\\/script")
    with contextlib.suppress(OSError):  # a full disk or a foreign folder: then it takes as long the next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(kept, bundle)
    return bundle


WIDTH, HEIGHT, SHARP = 640, 320, 2.0
CONFIG = {"background": "white", "view": {"stroke": None}, "font": "sans-serif"}
VEGA = "application/vnd.vegalite.v6+json"


@dataclass(frozen=True)
class ChartFigure:
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


def figure(chart: Chart, choice: str | None = None) -> ChartFigure:
    """A chart of the page as a figure of its own; a choice by its label or by what it fills in."""
    found = next((one for one in chart.choices if choice in (None, one.label, *one.holes.values())), None)
    if found is None:
        offered = ", ".join(
            dict.fromkeys(one.holes.get("x") or one.holes.get("y") or one.label for one in chart.choices)
        )
        raise TrainoffError(f"{chart.name}: there is no `{choice}` to draw; there is {offered}")
    title = {"text": chart.title, "anchor": "start"}
    return ChartFigure({"width": WIDTH, "height": HEIGHT, **chart.drawn(found), "title": title, "config": CONFIG})


def plot(records: list[Record], folder: Path, what: str, x: str | None, workload: str | None) -> ChartFigure:
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
    charts = {chart.name: chart for chart in drawn(ChartContext(ranked(own), SeriesCache(folder)), shown)}
    name = "curve" if what == own[0].first.metric else what
    if name not in charts:
        close = nearest(name, list(charts))
        hint = f"did you mean `{close}`?" if close else f"there is {', '.join(charts)}"
        raise TrainoffError(f"there is no chart `{what}` of these records; {hint}")
    return figure(charts[name], x)
