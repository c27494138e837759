"""One record is one line, for programs and for people, whatever was in it."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from dataloader.app.log import Alert, LogOptions, bound, bound_fields, get, set_up, tear_down
from dataloader.app.log.formatters import JsonLineFormatter, TextLineFormatter
from dataloader.app.log.masking import Masker

FORGED = "done\n2026-01-01 00:00:00.000+00:00 ERROR   x: forged\r\x1b[2J\x85\u2028\u202e\x00"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def speaking(stream: io.StringIO | None = None, **options: Any) -> Iterator[io.StringIO]:
    stream = stream or io.StringIO()
    set_up(LogOptions(stream=stream, **options))
    try:
        yield stream
    finally:
        tear_down()


def only_line(stream: io.StringIO) -> dict[str, Any]:
    [line] = stream.getvalue().splitlines()
    record: dict[str, Any] = json.loads(line)
    return record


def fail(text: str) -> None:
    raise ValueError(text)


def test_a_line_is_json_where_no_person_reads():
    with speaking(timezone="Europe/Moscow") as out:
        get("dataloader.workers.reaper").info(Alert.REAPER_REQUEUED, count=3, queue="Отчёты")

    line = only_line(out)
    assert (line["event"], line["level"], line["logger"]) == ("reaper.requeued", "info", "dataloader.workers.reaper")
    assert (line["count"], line["queue"], line["thread"]) == (3, "Отчёты", threading.current_thread().name)
    assert line["time"].endswith("+03:00")
    assert abs((datetime.now().astimezone() - datetime.fromisoformat(line["time"])).total_seconds()) < 600


def test_a_line_is_text_on_a_terminal():
    with speaking(Terminal(), colour=False) as out:
        get("dataloader.workers.reaper").info("reaper.requeued", count=3, empty="", reason="a b", args={"a": [1]})

    assert re.fullmatch(
        r"""\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+00:00 INFO    dataloader.workers.reaper: reaper.requeued """
        r"""count=3 empty="" reason="a b" args=\{"a": \[1\]\}\n""",
        out.getvalue(),
    )


def test_colour_is_for_terminals_and_for_those_who_want_it():
    for stream, colour, seen in ((Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False)):
        with speaking(stream, colour=colour, format="text"):
            get("x").error("loud")
        assert ("\x1b[31m" in stream.getvalue()) is seen


def test_the_format_can_be_chosen_against_the_terminal():
    with speaking(Terminal(), format="json") as out:
        get("x").info("said")
    assert only_line(out)["event"] == "said"


@pytest.mark.parametrize("format_", ["json", "text"])
def test_input_cannot_forge_a_line(format_):
    with speaking(format=format_) as out:
        get("x\ny").info(FORGED, **{FORGED: FORGED, "nested": {FORGED: [FORGED]}})
        logging.getLogger("other").info("%s", FORGED)

    assert len(out.getvalue().splitlines()) == 2
    assert not set("\r\x1b\x85\u2028\x00") & set(out.getvalue())


def test_a_traceback_passes_for_nothing_else_in_text():
    with speaking(format="text") as out:
        try:
            fail(FORGED + " password=hunter2")
        except ValueError:
            get("x").exception("api.error", job="j")

    first, *rest = out.getvalue().splitlines()
    assert first.endswith("ERROR   x: api.error job=j")
    assert all(line.startswith("  | ") for line in rest)
    assert any("ValueError: done" in line for line in rest)
    assert "hunter2" not in out.getvalue()


def test_a_traceback_is_a_field_in_json():
    with speaking(secrets=("hunter2",)) as out:
        try:
            fail("no hunter2")
        except ValueError:
            get("x").exception("api.error")

    line = only_line(out)
    assert line["error"] == "ValueError: no ***"
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert line["traceback"].endswith("ValueError: no ***")
    assert "hunter2" not in out.getvalue()


def test_error_given_by_caller_stays():
    with speaking() as out:
        try:
            fail("inner")
        except ValueError:
            get("x").exception("api.error", error="told")
    assert only_line(out)["error"] == "told"


def test_an_exception_that_is_not_being_handled_harms_nothing():
    with speaking() as out:
        get("x").exception("api.error")
    assert "error" not in only_line(out)


@pytest.mark.parametrize("format_", ["json", "text"])
def test_secrets_are_in_no_line(format_):
    with speaking(format=format_, secrets=("swordfish",)) as out:
        get("x").info(
            "to postgresql://u:hunter2@db",
            password="hunter2",
            args={"token": "hunter2"},
            said="it is swordfish",
            bad=ValueError("password=hunter2"),
        )
        logging.getLogger("requests").info("GET %s", "https://u:hunter2@host/?api_key=hunter2")

    assert "hunter2" not in out.getvalue()
    assert "swordfish" not in out.getvalue()
    assert out.getvalue().count("***") >= 7


def test_bound_fields_are_in_every_line_of_the_thread():
    with speaking() as out:
        with bound(job="j", attempt=1):
            with bound(attempt=2, step="load"):
                logging.getLogger("requests").info("got it")
            get("x").info("said", attempt=3)
        get("x").info("after")

    inner, outer, after = (json.loads(line) for line in out.getvalue().splitlines())
    assert (inner["job"], inner["attempt"], inner["step"]) == ("j", 2, "load")
    assert (outer["job"], outer["attempt"]) == ("j", 3)
    assert "step" not in outer
    assert "job" not in after


def test_what_is_bound_ends_with_an_error_too():
    with pytest.raises(ValueError, match="out"), bound(job="j"):
        fail("out")
    assert bound_fields() == {}


def test_each_thread_binds_for_itself():
    seen: list[dict[str, Any]] = []

    def work() -> None:
        seen.append(bound_fields())
        with bound(job="theirs"):
            seen.append(bound_fields())

    with bound(job="ours"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert bound_fields() == {"job": "ours"}
    assert seen == [{}, {"job": "theirs"}]


def test_a_field_does_not_pass_for_a_part_of_the_line():
    with speaking() as out:
        get("x").info("said", time=1, level=2, logger=3, event=4, name=5, msg=6, args=7, self=8)
        logging.getLogger("x").info({"time": 1, "event": "dict", "kept": 2})

    ours, theirs = (json.loads(line) for line in out.getvalue().splitlines())
    assert (ours["event"], ours["level"], ours["logger"]) == ("said", "info", "x")
    assert [ours[key] for key in ("time_", "level_", "logger_", "event_", "name", "msg", "args", "self")] == [
        *range(1, 9)
    ]
    assert (theirs["event_"], theirs["time_"], theirs["kept"]) == ("dict", 1, 2)


@pytest.mark.parametrize("lines", [JsonLineFormatter(Masker(), UTC), TextLineFormatter(Masker(), UTC, colour=False)])
def test_message_with_wrong_arguments_is_still_logged(lines):
    record = logging.LogRecord("theirs", logging.WARNING, __file__, 1, "%d rows", ("many",), None)

    assert "%d rows (with arguments that do not fit it)" in lines.format(record)


def test_an_event_is_no_format():
    with speaking() as out:
        get("x").info("100%s done %(job)s")
    assert only_line(out)["event"] == "100%s done %(job)s"


def test_levels_have_their_names_and_debug_is_for_those_who_ask():
    def say_all() -> None:
        log = get("x")
        log.debug("a")
        log.info("b")
        log.warning("c")
        log.error("d")

    for debug, levels in ((True, ["debug", "info", "warning", "error"]), (False, ["info", "warning", "error"])):
        with speaking(debug=debug) as out:
            say_all()
        assert [json.loads(line)["level"] for line in out.getvalue().splitlines()] == levels


def test_the_names_that_alerts_rely_on_stay():
    assert {str(alert) for alert in Alert} == {
        "worker.claim.backoff",
        "worker.complete.failed",
        "reaper.requeued",
        "api.error",
        "webhook.disabled",
    }
