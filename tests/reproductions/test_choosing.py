"""docs/choosing.md and docs/claims.md: every piece of advice cites a claim with the verdict of a real run."""

import json
import re
import runpy
from pathlib import Path

import pytest

from trainoff.reproductions import CONFIRMED, NOT_COMPARABLE, REFUTED, REPRODUCTIONS
from trainoff.reproductions.published import claims

DOCS = Path(__file__).parents[2] / "docs"
CITED = re.compile(r"\[([a-z0-9-]+): (confirmed|refuted|not comparable)(, by design)?\]\(([^)]+)\)")


def verdicts() -> dict[str, str]:
    """Return the verdict on every claim from the pages of the reproductions."""
    found = {claim.id: CONFIRMED for claim in claims() if claim.because}
    for name in REPRODUCTIONS:
        for one in json.loads((DOCS / "reproduced" / f"{name}.json").read_text()):
            found[one["claim"]] = one["verdict"]
    return found


def advice() -> list[str]:
    """Return the pieces of advice on the page."""
    return [line for line in (DOCS / "choosing.md").read_text().splitlines() if line.startswith("- ")]


def test_every_piece_of_advice_cites_a_claim():
    assert len(advice()) > 10
    assert [line for line in advice() if not CITED.search(line)] == []


def test_cited_verdicts_are_those_of_the_runs():
    known = verdicts()
    cited = [found for line in advice() for found in CITED.finditer(line)]
    assert [found[1] for found in cited if known.get(found[1]) != found[2]] == []
    design = {claim.id for claim in claims() if claim.because}
    assert {found[1] for found in cited if found[3]} == {found[1] for found in cited if found[1] in design}


def test_the_page_of_all_claims_is_generated_from_the_verdicts():
    page = (DOCS / "claims.md").read_text()
    assert page == runpy.run_path(str(DOCS / "claims.py"))["page"](), "python docs/claims.py writes it again"
    known = verdicts() | {claim.id: NOT_COMPARABLE for claim in claims() if claim.not_comparable}
    for verdict in (CONFIRMED, REFUTED, NOT_COMPARABLE):
        assert page.count(f"| **{verdict}** |") == list(known.values()).count(verdict)
    linked = set(re.findall(r"\[page\]\(([^)#]+)", page))
    assert [file for file in sorted(linked) if not (DOCS / file).is_file()] == []


def test_cited_pages_exist():
    """Follow the relative links of every page, with their anchors."""
    pages = [*DOCS.parent.glob("*.md"), *DOCS.glob("**/*.md")]
    cited = [(page, link) for page in pages for link in re.findall(r"\]\(([^):\s]+)\)", prose(page))]
    assert len(cited) > 100
    assert [(page.name, link) for page, link in cited if not leads_somewhere(page, link)] == []


def leads_somewhere(page: Path, link: str) -> bool:
    """Return whether the file exists and has a heading with the anchor, by GitHub's rule."""
    name, _, anchor = link.partition("#")
    path = page.parent / name if name else page
    return path.exists() and (not anchor or anchor in anchors(path))


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```|^    .*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of headings: lower case, without punctuation, hyphens for spaces; repeated ones numbered."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    found = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {f"{each}-{before}" if (before := found[:place].count(each)) else each for place, each in enumerate(found)}


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_reproduction_has_a_page_of_a_real_run(name):
    page = (DOCS / "reproduced" / f"{name}.md").read_text()
    assert "It has not run yet" not in page
    assert f"trainoff reproduce {name}" in page
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
    assert [file for file in pictures if not (DOCS / "reproduced" / file).is_file()] == []
    judged = json.loads((DOCS / "reproduced" / f"{name}.json").read_text())
    assert [one["claim"] for one in judged] == [claim.id for claim in claims() if claim.reproduction == name]
