"""The pages about settings are the model's own words."""

from __future__ import annotations

import io
from pathlib import Path

from dotenv import dotenv_values

from dataloader.app.config import Settings, docs

ROOT = Path(__file__).parents[3]
REMEDY = "run `make generated`"


def test_the_page_in_the_docs_is_the_one_of_the_present_model():
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == docs.configuration_page(), REMEDY


def test_dotenv_example_is_up_to_date():
    assert (ROOT / ".env.example").read_text(encoding="utf-8") == docs.dotenv_example(), REMEDY


def test_both_pages_are_written_where_they_belong(tmp_path):
    (tmp_path / "docs").mkdir()

    docs.write_docs(tmp_path)

    assert (tmp_path / "docs" / "configuration.md").read_text(encoding="utf-8") == docs.configuration_page()
    assert (tmp_path / ".env.example").read_text(encoding="utf-8") == docs.dotenv_example()


def test_every_variable_is_on_both_pages():
    for variable in Settings.fields_by_variable():
        assert f"| `{variable}` |" in docs.configuration_page()
        assert f"\n#{variable}=" in docs.dotenv_example()


def test_the_example_as_it_is_changes_nothing():
    assert dotenv_values(stream=io.StringIO(docs.dotenv_example())) == {}


def test_the_example_uncommented_says_the_defaults():
    lines = [line.removeprefix("#") if line[:2] != "# " else line for line in docs.dotenv_example().splitlines()]
    result = dotenv_values(stream=io.StringIO("\n".join(lines)))

    assert result == {knob.variable: knob.default for knob in Settings().describe()}
