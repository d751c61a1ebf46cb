"""Build the documentation as a site in build/site, without the network; end with 1 if a link is dead.

    python -m scripts.docs_site

Links between documents are relative, so that they work in the repository; therefore pages, and files that they link
to, are copied to build/pages as they lie there. Zensical checks links between pages; what is checked here of its HTML
is the rest: links to files and folders, anchors of the reference, pages that mkdocs.yml forgets, and that no page loads
anything from elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urlsplit

from scripts.reference import ROOT, Page, pages

COPIED = (
    "docs",
    "config",
    "examples",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "compose.yaml",
)
SOURCES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
FILLED = {"docs/reference/api.md": "docs/reference/api.html"}
"""The page whose Markdown has names alone, and where they are explained."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def build() -> None:
    """Copy the pages, and have Zensical write the site."""
    for folder in (SOURCES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    SOURCES.mkdir(parents=True)
    for name in COPIED:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile)(ROOT / name, SOURCES / name)
    (SOURCES / "llms.txt").write_text(llms(list(pages())), encoding="utf-8")
    version = f"streammoe {PROJECT['version']}"
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, check=False, cwd=ROOT, env=os.environ | {"DOCS_VERSION": version})
    if done.returncode:
        sys.exit(done.returncode)
    for page in pages():  # llms.txt names them
        shutil.copyfile(SOURCES / page.path, SITE / page.path)


def llms(listed: list[Page]) -> str:
    """The pages as https://llmstxt.org asks for them: by section, each with its question."""
    lines = [f"# {PROJECT['name']}", "", f"> {PROJECT['description']}", ""]
    for section in dict.fromkeys(page.section for page in listed):
        of = [
            f"- [{page.title}]({FILLED.get(page.path, page.path)}): {page.heading}"
            for page in listed
            if page.section == section
        ]
        lines += [f"## {section}", "", *of, ""]
    return "\n".join(lines)


class Document(HTMLParser):
    """What a page links to, loads, and can be linked to by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.has_fence = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element is called, and where it leads."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        target = values.get("href", values.get("src"))
        if target is not None:
            is_link = tag == "a" or values.get("rel") == "canonical"
            (self.links if is_link else self.loaded).append(target)

    def handle_data(self, data: str) -> None:
        """Note a fence that was not taken for one."""
        self.has_fence |= "```" in data


def mistakes() -> list[str]:
    """What is wrong with the site."""
    documents = {path: Document(path.read_text(encoding="utf-8")) for path in sorted(SITE.rglob("*.html"))}
    found = [
        f"{path}: not in `nav` of mkdocs.yml"
        for path in sorted({path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.md")})
        if path not in {page.path for page in pages()} and not path.startswith("docs/adr/0")
    ]
    for path, document in documents.items():
        name = path.relative_to(SITE)
        if document.has_fence:
            found.append(f"{name}: ``` is shown as text; what follows it must be a language alone")
        for target in [*document.links, *document.loaded]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in document.loaded and parts.scheme != "data":
                    found.append(f"{name}: loads {target} from elsewhere")
                continue
            if path.name == "404.html":  # its links begin at the root of a server
                continue
            there, anchor = urldefrag(target)
            file = (path.parent / unquote(there)).resolve() if there else path
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                found.append(f"{name}: {target} is no file of the site")
            elif file in documents and unquote(anchor) not in documents[file].anchors:
                found.append(f"{name}: {target} has no such anchor")
    return found


if __name__ == "__main__":
    build()
    if problems := mistakes():
        sys.exit("\n".join(problems))
