"""The axes that charts share: a figure that is chosen on the page, and quality."""

from __future__ import annotations

from trainoff.report.page.encode import Spec

# As many places as tell the best from a perfect one, and a tick from the next; the same for all of an axis.
LEAST, SPAN = "domain('y')[0]", "(domain('y')[1] - domain('y')[0])"
PLACES = f"clamp(ceil(-log(min({LEAST}, {SPAN} / 4)) / LN10), 2, 4)"
# Lines of an axis of powers that have no figure are fainter.
FAINT = {"gridOpacity": {"condition": {"test": "datum.label !== ''", "value": 1}, "value": 0.4}}


def measure(hole: str) -> Spec:
    """An axis of a figure that is chosen on the page."""
    scale = {"type": f"@{hole}_scale", "nice": False, "padding": 12}
    of_bytes = f"indexof(['memory', 'bytes'], '@{hole}') >= 0"  # 400M instead of 400,000,000
    axis = {**FAINT, "labelExpr": f"datum.label && {of_bytes} ? format(datum.value, '~s') : datum.label"}
    return {"field": f"@{hole}", "type": "quantitative", "title": f"@{hole}_title", "scale": scale, "axis": axis}


def quality(metric: str) -> Spec:
    """An axis of quality; accuracies near 1 are spread out: every halving of the error takes as much room."""
    if metric != "accuracy":
        return {"field": "y", "type": "quantitative", "title": metric, "scale": {"zero": False}}
    axis = {"tickCount": 6, "labelExpr": f"format(1 - datum.value, '.' + {PLACES} + 'f')"}
    scale = {"type": "log", "reverse": True, "nice": False, "padding": 8}
    return {"field": "error", "type": "quantitative", "title": metric, "scale": scale, "axis": axis}
