"""The report as one self-contained HTML file: the result, the leader board, charts of every run, and every failure."""

from trainoff.report.html.content import Content, compose, gather
from trainoff.report.html.render import render

__all__ = ["Content", "compose", "gather", "render"]
