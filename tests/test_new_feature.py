"""A new feature is a folder and a line: one is added to a copy of the checkout, and its page and its act are used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.scratch import copy_sources

_FOLDERS = ("app", "workers", "pipelines", "dataloader")
_FEATURE = {
    "__init__.py": '"""Greetings."""\n',
    "feature.py": (
        "from dataloader.app.acts.feature import Feature, NavLink\n\n"
        'FEATURE = Feature(name="greetings", blueprints=("routes.create_greetings", "pages.create_greetings_page"),'
        ' navigation=(NavLink("Work", "Greetings", "/greetings"),))\n'
    ),
    "acts.py": '''from dataclasses import dataclass

from pydantic import Field

from dataloader.app.acts.act import Call, act
from dataloader.app.http.schemas import BodyModel


class Greeting(BodyModel):
    """What to say."""

    text: str = Field(description="The words.")


@dataclass(frozen=True)
class Greeted:
    name: str
    text: str


@act("person.greeted", "PUT", "/greetings/<name>")
def greet(call: Call, name: str, body: Greeting) -> Greeted:
    """Greet a person."""
    return Greeted(name, body.text)
''',
    "routes.py": """from dataloader.app.acts.web import add_routes
from dataloader.app.features.greetings.acts import greet
from dataloader.app.http.routing import ApiBlueprint


def create_greetings(site):
    blueprint = ApiBlueprint("greetings", "/api/v1")
    add_routes(blueprint, [greet], site.runner)
    return blueprint
""",
    "pages.py": '''from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.ui.base import FormModel, PageRenderer


def create_greetings_page(site):
    pages = PageRenderer("greetings_page", site.options)

    @pages.page("/greetings", query=FormModel, scope=Scope.READ)
    def show_greetings(query):
        """Show greetings."""
        return pages.render("greetings.html")

    return pages.blueprint
''',
    "templates/greetings.html": "{% extends base %}{% block live %}No greeting yet.{% endblock %}",
}
_USE = """
import json
import logging
from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines

audited = []
handler = logging.Handler()
handler.emit = lambda record: audited.append(record.getMessage())
logging.getLogger("dataloader.audit").addHandler(handler)
logging.getLogger("dataloader.audit").setLevel(logging.INFO)
app = create_app(JobQueue(Pool("host=127.0.0.1 port=1")), Pipelines(), WebOptions(version="1"))
client = app.test_client()
answer = client.put("/api/v1/greetings/ann", json={"text": "hello"})
wrong = client.put("/api/v1/greetings/ann", json={"text": 3})
document = client.get("/openapi.json").json["paths"]["/api/v1/greetings/{name}"]["put"]
print(json.dumps([
    answer.json, wrong.status_code, wrong.json["errors"][0]["field"], document["operationId"], document["summary"],
    'href="/greetings"' in (page := client.get("/greetings").text), "No greeting yet." in page, audited,
]))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in _FOLDERS:
        copy_sources(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_new_feature_is_a_folder_and_a_line(copy: Path):
    registry = copy / "app" / "features" / "registry.py"
    folder = registry.parent / "greetings"
    folder.mkdir()
    (folder / "templates").mkdir()
    for name, text in _FEATURE.items():
        (folder / name).write_text(text)
    lines = registry.read_text().splitlines()
    lines.insert(lines.index(")"), '    "greetings",')
    registry.write_text("\n".join(lines) + "\n")

    done = subprocess.run([sys.executable, "-c", _USE], cwd=copy, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    *answers, audited = json.loads(done.stdout)
    assert answers == [{"name": "ann", "text": "hello"}, 400, "text", "greet", "Greet a person", True, True]
    assert audited.count("person.greeted") == 1
