"""Write claims.md beside this file: every published claim with its verdict, from the pages of the reproductions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from trainoff.reproductions import CONFIRMED, NOT_COMPARABLE, REFUTED, REPRODUCTIONS
from trainoff.reproductions.published import Claim, Document, claims, documents

HERE = Path(__file__).parent
HEAD = """# Which of the published claims hold?

Every claim of the five published documents, with its verdict. *Confirmed* and *refuted* are by real runs on one machine
with two cores, at the scale that the linked page states, or by the design of a system if no run decides it; *not
comparable* gives the reason why it cannot be tested here. `trainoff reproduce NAME` tests them on your machine;
[choosing.md](choosing.md) has the resulting advice. Made by `python docs/claims.py`."""


def verdicts() -> dict[str, tuple[str, str]]:
    """Return the verdict on every claim, and its evidence."""
    found = {}
    for claim in claims():
        if claim.because:
            page = (claim.shown or "").removeprefix("docs/")
            found[claim.id] = CONFIRMED, f"by design: {claim.because.rstrip('.')} ([page]({page}))"
        elif claim.not_comparable:
            found[claim.id] = NOT_COMPARABLE, claim.not_comparable
    for name in REPRODUCTIONS:
        for one in json.loads((HERE / "reproduced" / f"{name}.json").read_text(encoding="utf-8")):
            text = "; ".join(part for part in (one["measured"], one["reason"]) if part and part != "-")
            found[one["claim"]] = one["verdict"], f"{text} ([page](reproduced/{name}.md))".lstrip()
    return found


def page() -> str:
    """Return the page."""
    found = verdicts()
    lines = ["| document | claims | confirmed | refuted | not comparable |", "|---|---|---|---|---|"]
    for document in documents():
        counts = Counter(found[claim.id][0] for claim in claims() if claim.document == document.id)
        cells = [sum(counts.values()), counts[CONFIRMED], counts[REFUTED], counts[NOT_COMPARABLE]]
        lines.append(f"| {document.id}, *{document.title}* | {' | '.join(map(str, cells))} |")
    return "\n\n".join([HEAD, "\n".join(lines), *(_section(document, found) for document in documents())]) + "\n"


def _section(document: Document, found: dict[str, tuple[str, str]]) -> str:
    lines = [f"## {document.id}, {document.title}", "", "| claim | verdict | evidence |", "|---|---|---|"]
    for claim in claims():
        if claim.document == document.id:
            verdict, why = found[claim.id]
            lines.append(f"| {_cell(_said(claim))} | **{verdict}** | {_cell(why)} |")
    return "\n".join(lines)


def _said(claim: Claim) -> str:
    return f"{claim.says} *({claim.where})*"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    (HERE / "claims.md").write_text(page(), encoding="utf-8")
