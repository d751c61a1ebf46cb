"""Check every installed package for known vulnerabilities, if an index with advisories can be reached.

pip-audit queries PyPI package by package, and skips packages that are unknown there. Behind a mirror that has files but
no advisories that would be all of them, which would look like a clean result. So PyPI is first queried for a release
whose vulnerabilities are known; without them the audit is reported as skipped. With them, a finding fails, and so does
a package that was not audited.
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
"""Packages that come with the environment, or are not on any index."""
ACCEPTED: dict[str, str] = {}
"""Findings that do not affect streammoe, by identifier, each with the reason."""


def why_unavailable() -> str | None:
    """Return why there are no advisories, or ``None`` if there are."""
    try:
        with urllib.request.urlopen(KNOWN, timeout=PROBE_SECONDS) as answer:
            found = json.load(answer).get("vulnerabilities")
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return f"{KNOWN}: {reason}"
    return None if found else f"{KNOWN} lists no vulnerabilities, so this index has no advisories"


def installed() -> dict[str, str]:
    """Return name and version of the packages that streammoe and its tools have installed."""
    found = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in distributions()}
    return {name: found[name] for name in sorted(found.keys() - NOT_OURS)}


def audit(packages: dict[str, str]) -> list[str]:
    """Run pip-audit, and return a line for each problem."""
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
        return [f"pip-audit exited with {done.returncode}: {done.stderr.strip()}"]
    return problems(packages, answers)


def problems(packages: dict[str, str], answers: dict[str, dict[str, object]]) -> list[str]:
    """Return the problems in the answers of pip-audit, by package."""
    found = []
    for name, version in packages.items():
        answer = answers.get(name, {"skip_reason": "not in the output of pip-audit"})
        if "vulns" not in answer:
            found.append(f"{name} {version} was not audited: {answer.get('skip_reason')}")
            continue
        vulnerabilities = answer["vulns"]
        assert isinstance(vulnerabilities, list)  # noqa: S101 - for the type checker
        found += [
            f"{name} {version}: {each['id']}, fixed in {', '.join(each['fix_versions']) or 'no version yet'}"
            for each in vulnerabilities
            if each["id"] not in ACCEPTED
        ]
    return found


def main() -> int:
    """Print the findings; return 0 if there are none, or the audit was not possible."""
    reason = why_unavailable()
    if reason is not None:
        print(f"known vulnerabilities: NOT AUDITED, no advisories available ({reason})")
        return 0
    packages = installed()
    found = audit(packages)
    print("\n".join(found) if found else f"known vulnerabilities: none in {len(packages)} packages")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
