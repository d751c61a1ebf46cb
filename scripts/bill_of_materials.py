"""The bill of materials that wheels carry (PEP 770): what they hold, and what they expect to be installed next to it.

The versions that are installed next to it differ from place to place; an image has a bill of its own, with versions.
"""

import json
import tomllib
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot7
from packageurl import PackageURL
from packaging.requirements import Requirement


def bill_of_materials(pyproject: Path) -> str:
    """Describe a project as CycloneDX, the same text for the same project."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    purl = PackageURL("pypi", name=project["name"], version=project["version"])
    whole = Component(
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        name=project["name"],
        version=project["version"],
        description=project["description"],
        purl=purl,
        licenses=[LicenseExpression(project["license"])],
    )
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, str(purl)))
    bom.metadata.component = whole
    parts = []
    for name in (Requirement(each).name for each in project["dependencies"]):
        purl = PackageURL("pypi", name=name)
        parts.append(Component(bom_ref=str(purl), name=name, purl=purl, is_external=True))
    bom.components.update(parts)
    bom.register_dependency(whole, parts)
    written = json.loads(JsonV1Dot7(bom).output_as_string())
    del written["metadata"]["timestamp"]  # when it was written says nothing
    return json.dumps(written, indent=2, sort_keys=True) + "\n"
