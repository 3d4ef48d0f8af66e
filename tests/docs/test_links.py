"""Links of all pages lead somewhere: to a file that is there and, behind a #, to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    p
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/**/*.md")
    for p in ROOT.glob(pattern)
    if "reference" not in p.parts
)
CODE = re.compile(r"^```.*?^```|``[^\n]*?``|`[^`\n]*`", re.S | re.M)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?\)")


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures, except in code."""
    return LINK.findall(CODE.sub(lambda found: "x" * (found[0].count("`") < 6), page.read_text()))


def anchors(page: Path) -> set[str]:
    """The targets of a #: headings as GitHub and MyST write them."""
    headings = re.findall(r"^#+ +(.+?)\s*$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?://[\w.-]+\.[a-z]+(/\S*)?$", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}: there is no {target.relative_to(ROOT)}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: headings are {sorted(anchors(target))}"


def test_links_are_found() -> None:
    """A guard against a pattern that finds nothing."""
    assert "docs/sharding.md" in links(ROOT / "README.md") and "docs/pictures/demo.svg" in links(ROOT / "README.md")
    assert "tensor-parallel" in anchors(ROOT / "docs" / "sharding.md")


def test_the_readme_leads_to_every_page() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(ROOT / "README.md")}
    pages = {p for p in [*ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")] if p.name != "index.md"}
    assert not sorted(p.name for p in pages - linked)


def test_every_design_page_and_cluster_is_listed() -> None:
    for index, folder in (("design/index.md", "design"), ("clusters/README.md", "clusters")):
        text = (ROOT / "docs" / index).read_text()
        listed = set(re.findall(r"^([\w-]+)$", "".join(re.findall(r"```{toctree}(.*?)```", text, re.S)), re.M))
        assert {p.stem for p in (ROOT / "docs" / folder).glob("*.md")} - {"index", "README"} == listed


PROMISED = ["examples/README_SIGNALS.md", "docs/BATCHING_AND_COMPILATION.md", "docs/BACKEND_CONFIG.md", "docs/autograd.md",
            "docs/monitoring.md", "docs/tuning.md", "docs/installation.md", "requirements.txt", "CLAUDE.md", "CONTRIBUTING.md",
            "LICENSE"]  # fmt: skip


@pytest.mark.parametrize("name", PROMISED)
def test_pages_that_gt_s_and_gt2_s_users_know_are_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 30
