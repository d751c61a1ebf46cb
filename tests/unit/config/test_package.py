"""What is published to PyPI."""

import re
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.unit.config.programs import run

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.slow
def test_packages_pass_their_checks_and_wheels_hold_the_library_alone(tmp_path):
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT)  # the wheel from the other one
    [wheel], [source] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    run(sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", wheel)

    roots = {"streammoe": ROOT, "streammoe_connectors": ROOT / "connectors"}
    files = (file.relative_to(parent) for root, parent in roots.items() for file in (parent / root).rglob("*.*"))
    library = {str(file) for file in files if "__pycache__" not in file.parts}
    about = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "sboms/streammoe.cdx.json"}
    held = set(ZipFile(wheel).namelist())
    assert held == library | {"streammoe/default.toml"} | {f"streammoe-{VERSION}.dist-info/{name}" for name in about}


@pytest.mark.parametrize("file", ["CHANGELOG.md", "config/kubernetes/kustomization.yaml", "docs/install.md"])
def test_what_names_the_version_names_that_of_the_project(file):
    written = r"^(?:## \[|.*(?:newTag: |streammoe:|VERSION=))(\d[\w.]+)"
    named = re.findall(written, (ROOT / file).read_text(), re.MULTILINE)
    assert named[:1] == [VERSION]
    assert file == "CHANGELOG.md" or {*named} == {VERSION}
