"""The report: one HTML file that opens anywhere, answers in its first line, and shows every run and every failure."""

from trainoff.report.html.content import Content, compose, gather
from trainoff.report.html.render import render

__all__ = ["Content", "compose", "gather", "render"]
