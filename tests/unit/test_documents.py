"""What the documents say of tests and files must be true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISES = ("kafka.md", "delivery.md")


def rows(document):
    """The rows of the table "What happens when", as lists of cells."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    table = text.split("## What happens when\n")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


@pytest.mark.parametrize("document", PROMISES)
def test_each_failure_names_the_test_that_shows_it(document):
    found = rows(document)
    assert len(found) > 20
    for row in found:
        assert len(row) == 3, row
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[2])
        assert named, row
        for path, name in named:
            source = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert re.search(rf"^ *def {name}\(", source, re.MULTILINE), (path, name)


@pytest.mark.parametrize("document", sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"]), ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {_anchor(title) for title in headings}, target


def _anchor(title):
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
