"""A process shows that it runs: a banner for people, a line of JSON among lines of JSON."""

from __future__ import annotations

import json

import pytest

from dataloader.app.config import load_settings
from dataloader.app.runtime.announcement import announce
from dataloader.app.runtime.service import set_up_logging
from dataloader.app.runtime.startup import Startup

UP = Startup("db", None, {"acme": "Traceback\n  x\nImportError: no"})


def lines(capsys: pytest.CaptureFixture[str], log_format: str, startup: Startup) -> tuple[str, list[str]]:
    settings = load_settings({"DL_LOG_FORMAT": log_format}, dotenv=None)
    set_up_logging(settings)
    announce(settings, startup, "a banner\nof two lines")
    output = capsys.readouterr()
    return output.out, output.err.splitlines()


@pytest.mark.parametrize(("startup", "event"), [(UP, "service.ready"), (Startup("db", "away"), "service.waiting")])
def test_json_logs_have_one_line_in_place_of_the_banner(capsys, startup, event):
    printed, logged = lines(capsys, "json", startup)

    assert printed == ""
    (line,) = map(json.loads, logged)
    assert (line["event"], line["database"]) == (event, "db")


def test_people_get_the_banner(capsys):
    assert lines(capsys, "text", UP) == ("a banner\nof two lines\n", [])
