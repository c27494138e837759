"""Every example of settings in the documentation and in the files for deployments is loaded through the settings."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from dataloader.app.config import Settings, load_settings
from dataloader.app.config.declaring import accepted_values
from dataloader.pipelines.executors import Engines
from tests.support.processes import ROOT

NAMES = sorted(Settings.fields_by_variable(), key=len, reverse=True)
AN_ASSIGNMENT = re.compile(rf"(?<![\w$])({'|'.join(NAMES)})=('[^']*'|\"[^\"]*\"|[^\s`|]+)")
A_LINE = re.compile(rf"^(?:#?|Environment=)({'|'.join(NAMES)})=(.*)$", re.MULTILINE)
INLINE_CODE = re.compile(r"`([^`]+)`")
ANY_BLOCK = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
YAML_BLOCK = re.compile(r"^```ya?ml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
JSON_EXAMPLE = re.compile(r"such as ([\[{].*[\]}])")
MADE_BY_A_SHELL = re.compile(r"[$…<]")

NEEDED = {
    **{name: {"DL_DB_DSN": "postgresql://dataloader@db-1/dataloader"} for name in ("DL_WORKER_DSN", "DL_READ_DSN")},
    **{name: {"PG_HOST": "db-1"} for name in ("PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE")},
}
"""Without these a setting has no meaning."""


class Example(NamedTuple):
    source: str
    variable: str
    text: str


def examples() -> list[Example]:
    found = [example for path in _files() for example in _examples_of(path)]
    for variable, field in Settings.fields_by_variable().items():
        found += [Example("accepted values", variable, text) for text in JSON_EXAMPLE.findall(accepted_values(field))]
    return [example for example in dict.fromkeys(found) if not MADE_BY_A_SHELL.search(example.text)]


def _files() -> list[Path]:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "_made" not in path.parts]
    deploy = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    return [*sorted(pages), *sorted(deploy), *(ROOT / name for name in ("README.md", ".env.example", "compose.yaml"))]


def _examples_of(path: Path) -> Iterator[Example]:
    text, source = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    if path.suffix == ".md":
        for match in AN_ASSIGNMENT.finditer(text):
            yield Example(source, match[1], "".join(shlex.split(match[2])))
        for code in INLINE_CODE.findall(ANY_BLOCK.sub("", text)):
            if _is_executors(value := _parse(code)):
                yield Example(source, "DL_EXECUTORS", json.dumps(value))
        for block in YAML_BLOCK.findall(text):
            yield from _examples_of_yaml(source, block)
    elif path.suffix in (".yaml", ".yml"):
        yield from _examples_of_yaml(source, text)
    else:
        for name, value in A_LINE.findall(text):
            yield Example(source, name, re.sub(r"^'(.*)'$", r"\1", value))


def _examples_of_yaml(source: str, text: str) -> Iterator[Example]:
    for document in yaml.safe_load_all(text):
        for name, value in _variables(document):
            yield Example(source, name, value)


def _variables(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, list):
        for item in node:
            yield from _variables(item)
    elif isinstance(node, dict):
        if isinstance(node.get("name"), str) and "value" in node:
            node = {node["name"]: node["value"]}
        for name, value in node.items():
            if name in Settings.fields_by_variable() and isinstance(value, str | int | float | bool):
                yield name, str(value).lower() if isinstance(value, bool) else str(value)
            else:
                yield from _variables(value)


def _parse(code: str) -> Any:
    try:
        return json.loads(code)
    except ValueError:
        return None


def _is_executors(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(engine, dict) and {"address", "kind"} & engine.keys() for engine in value.values())


EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.source}-{example.variable}")
def test_example_of_a_setting_is_accepted(example: Example):
    value = example.text.replace('"…"', '"http://head:8265"')

    settings = load_settings({**NEEDED.get(example.variable, {}), example.variable: value}, dotenv=None)

    if example.variable == "DL_EXECUTORS":
        engines = Engines(settings.executors, read_secret=lambda name: "a-token")
        for name in engines.remote_names:
            assert engines.get(name).address


def test_examples_are_found_in_each_kind_of_file():
    sources = {example.source for example in EXAMPLES}
    assert {
        "README.md", ".env.example", "compose.yaml", "docs/offload.md", "docs/scaling.md", "docs/deploying.md",
        "deploy/systemd/environment.example", "deploy/kubernetes/settings.yaml", "accepted values",
    } <= sources  # fmt: skip
    engines = [set(json.loads(example.text)) for example in EXAMPLES if example.variable == "DL_EXECUTORS"]
    assert {"ray", "kubernetes", "dask"} <= set().union(*engines)
