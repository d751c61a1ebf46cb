"""Workflows, as far as they can be checked away from GitHub."""

import re
from pathlib import Path

import pytest
import yaml

from scripts.check_image import read_dockerfile
from tests.unit.config.programs import run

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


@pytest.mark.exhaustive  # it is fetched and compiled
def test_actionlint_finds_nothing_wrong():
    run("go", "run", ACTIONLINT, *map(str, WORKFLOWS), cwd=ROOT)


def test_actions_are_pinned_by_commit_with_their_version():
    used = re.findall(r"uses: ([^.\n].*)", "".join(path.read_text() for path in WORKFLOWS))
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action) for action in used)


def test_the_image_of_a_release_says_what_it_is():
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    [build] = [step["with"] for step in release["jobs"]["image"]["steps"] if "build-args" in step.get("with", {})]
    given = {line.partition("=")[0] for line in build["build-args"].splitlines()}
    asked = {each.rest.partition("=")[0] for each in read_dockerfile(ROOT / "Dockerfile") if each.name == "ARG"}
    assert given == asked - {"EXTRAS"}
