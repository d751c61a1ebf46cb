"""What is wrong with the site is found."""

import pytest

pytest.importorskip("yaml")

from scripts import docs_site
from scripts.reference import Page

LISTED = Page("Start", "First", "first.md", "What is first?")
SOUND = '<h1 id="top"></h1><a href="#top"></a><a href="folder/other.html#there"></a><a href="https://example.com"></a>'


@pytest.fixture
def mistakes_of(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_site, "SITE", tmp_path / "site")
    monkeypatch.setattr(docs_site, "SOURCES", tmp_path / "pages")
    monkeypatch.setattr(docs_site, "pages", lambda: [LISTED])
    for folder in ("site/folder", "site/empty", "pages"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "site" / "folder" / "other.html").write_text('<p id="there"></p>')
    (tmp_path / "pages" / "first.md").write_text("# What is first?")

    def found(html):
        (tmp_path / "site" / "first.html").write_text(html)
        return docs_site.mistakes()

    return found


def test_a_sound_page_has_none(mistakes_of):
    assert mistakes_of(SOUND) == []


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ('<a href="gone.html"></a>', "gone.html is no file"),
        ('<a href="empty"></a>', "empty is no file"),
        ('<a href="folder/other.html#nowhere"></a>', "no such anchor"),
        ('<script src="https://example.com/x.js"></script>', "loads https://example.com/x.js"),
        ('<link href="//example.com/x.css">', "loads //example.com/x.css"),
        ("<p>```sh some</p>", "shown as text"),
    ],
)
def test_what_is_wrong_is_named(html, said, mistakes_of):
    assert [said in mistake for mistake in mistakes_of(SOUND + html)] == [True]


def test_a_page_that_the_menu_forgets_is_named(mistakes_of, tmp_path):
    (tmp_path / "pages" / "lost.md").write_text("# Lost")
    assert mistakes_of(SOUND) == ["lost.md: not in `nav` of mkdocs.yml"]


def test_models_are_given_the_menu():
    listed = docs_site.llms([LISTED, Page("Start", "Python", "docs/reference/api.md", "What is there?")])
    assert "\n## Start\n\n- [First](first.md): What is first?\n- [Python](docs/reference/api.html): What" in listed
