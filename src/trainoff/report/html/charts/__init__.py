"""The charts of the report: one class per chart, listed in `CHARTS` in the order of the page."""

from __future__ import annotations

from trainoff.report.html.charts.base import Chart, ChartContext, SeriesReader
from trainoff.report.html.charts.runs import LearningCurves, ResourceUsage
from trainoff.report.html.charts.settings import ParetoFront, PhaseTimes, Scaling, SettingGrid, TimeToTarget

__all__ = ["CHARTS", "Chart", "ChartContext", "SeriesReader", "charts_of"]

CHARTS: tuple[type[Chart], ...] = (
    LearningCurves,
    PhaseTimes,
    TimeToTarget,
    Scaling,
    ParetoFront,
    SettingGrid,
    ResourceUsage,
)


def charts_of(context: ChartContext) -> list[Chart]:
    """Return the charts of one workload for which there are data."""
    charts = [chart(context) for chart in CHARTS]
    return [chart for chart in charts if chart.choices and any(chart.data.values())]
