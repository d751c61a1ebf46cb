"""Hold every installed package against the known vulnerabilities, where somebody can be asked.

pip-audit asks PyPI, package by package, and passes over those that PyPI knows nothing of. Behind a mirror that has
files and no advisories that would be all of them, and would look like a clean bill of health. So PyPI is first asked
for a release whose vulnerabilities are known; without them the audit says that it was left out. With them, a finding
fails, and so does a package that was not audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from importlib.metadata import distributions
from pathlib import Path

KNOWN = "https://pypi.org/pypi/jinja2/2.10/json"
"""A release with vulnerabilities that were published long ago."""
PROBE_SECONDS = 5.0
AUDIT_SECONDS = 300.0
NOT_OURS = {"pip", "setuptools", "wheel", "streammoe"}
"""What the environment brings for itself, and what is on no index."""
ACCEPTED: dict[str, str] = {}
"""Findings that do not concern streammoe, by their identifier, each with the reason."""


def why_nobody_can_be_asked() -> str | None:
    """What keeps the advisories away, or ``None`` if they are there."""
    try:
        with urllib.request.urlopen(KNOWN, timeout=PROBE_SECONDS) as answer:
            found = json.load(answer).get("vulnerabilities")
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return f"{KNOWN}: {reason}"
    return None if found else f"{KNOWN} names no vulnerabilities, so that this index has none"


def installed() -> dict[str, str]:
    """Name and version of what streammoe and its tools have brought here."""
    found = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in distributions()}
    return {name: found[name] for name in sorted(found.keys() - NOT_OURS)}


def audit(packages: dict[str, str]) -> list[str]:
    """Ask, and say what is wrong, a line for each."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "requirements.txt")
        asked.write_text("".join(f"{name}=={version}\n" for name, version in packages.items()), encoding="utf-8")
        options = ["--requirement", str(asked), "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", *options, "--format", "json"],
            check=False,
            capture_output=True,
            text=True,
            timeout=AUDIT_SECONDS,
        )
    try:
        answers = {entry["name"].lower().replace("_", "-"): entry for entry in json.loads(done.stdout)["dependencies"]}
    except (ValueError, LookupError):
        return [f"pip-audit ended with {done.returncode}: {done.stderr.strip()}"]
    return problems(packages, answers)


def problems(packages: dict[str, str], answers: dict[str, dict[str, object]]) -> list[str]:
    """What is wrong with these answers of pip-audit, by package."""
    found = []
    for name, version in packages.items():
        answer = answers.get(name, {"skip_reason": "pip-audit said nothing of it"})
        if "vulns" not in answer:
            found.append(f"{name} {version} was not audited: {answer.get('skip_reason')}")
            continue
        vulnerabilities = answer["vulns"]
        assert isinstance(vulnerabilities, list)  # noqa: S101 - for the type checker
        found += [
            f"{name} {version}: {each['id']}, mended in {', '.join(each['fix_versions']) or 'no version yet'}"
            for each in vulnerabilities
            if each["id"] not in ACCEPTED
        ]
    return found


def main() -> int:
    """Print what was found; 0 if that is nothing, or nobody could be asked."""
    reason = why_nobody_can_be_asked()
    if reason is not None:
        print(f"known vulnerabilities: NOT AUDITED, nobody could be asked ({reason})")
        return 0
    packages = installed()
    found = audit(packages)
    print("\n".join(found) if found else f"known vulnerabilities: none in {len(packages)} packages")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
