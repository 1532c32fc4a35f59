"""Sets the page: fills the template, and puts style, script, charts and their library inside."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainoff.analysis.bottleneck import HEADINGS as NODE_HEADINGS
from trainoff.data import cache
from trainoff.report.html.chart_data import pack
from trainoff.report.html.charts import Chart
from trainoff.report.html.content import Content, as_script
from trainoff.report.html.tables import MEANINGS

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
        kept.with_suffix(f".{os.getpid()}").write_text(bundle)
        kept.with_suffix(f".{os.getpid()}").replace(kept)
    return bundle
