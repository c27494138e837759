"""The words of the search on the page of jobs, and the fields of the filter that they set."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dataloader.app.features.jobs.search_words import chips, join_fields, parse_words
from dataloader.app.ui.base import InvalidForm

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        ("task:load.invoices queue:etl", {"task": "load.invoices", "queue": "etl"}),
        ("key:invoices:2026-11-22", {"lock_key": "invoices:2026-11-22"}),
        ("status:failed,lost", {"status": "failed,lost"}),
        ("state:blocked", {"status": "queued", "wait_state": "blocked"}),
        ("args.customer:4711", {"args": "customer:4711"}),
        ("args.a.b:1 args.c:x:y", {"args": "a.b:1\nc:x:y"}),
        ('error:"read timeout" id:1', {"error": "read timeout", "job_id": "1"}),
        ("HTTPError 503", {"text": "HTTPError 503"}),
        ("invoices:2026 x", {"text": "invoices:2026 x"}),
        ('"task:x"', {"text": "task:x"}),
        ("created:1h", {"created_from": "2026-11-21T11:00:00+00:00", "created_to": ""}),
        ("created:today", {"created_from": "2026-11-21T00:00:00+03:00", "created_to": "2026-11-22T00:00:00+03:00"}),
        (
            "finished:2026-11-18..2026-11-20",
            {"finished_from": "2026-11-18T00:00:00+03:00", "finished_to": "2026-11-21T00:00:00+03:00"},
        ),
        ("started:2026-11-20T18:30", {"started_from": "2026-11-20T18:30:00+03:00", "started_to": ""}),
        ("started:..2026-11-20T18:30", {"started_from": "", "started_to": "2026-11-20T18:30:00+03:00"}),
    ],
)
def test_words_set_fields(raw, fields):
    assert parse_words(raw, "Europe/Moscow", NOW) == fields


def test_time_that_is_none_is_refused():
    with pytest.raises(InvalidForm, match="'soon' is not a time"):
        parse_words("created:soon", "UTC", NOW)


def test_more_args_join_those_of_the_filter():
    before = {"args": "a:1\nb:2", "status": "queued", "wait_state": "ready"}

    joined = join_fields(before, {"args": "b:3", "status": "lost"})

    assert joined == {"args": "a:1\nb:3", "status": "lost", "wait_state": ""}


def test_fifth_word_of_args_is_refused():
    with pytest.raises(InvalidForm, match="at most 4 words"):
        join_fields({"args": "a:1\nb:2\nc:3\nd:4"}, {"args": "e:5"})


def test_each_field_is_a_chip_that_can_be_removed():
    fields = {"task": "x", "args": "a:1\nb:2", "status": "failed", "created_from": "2026-11-21T00:00:00+03:00"}

    found = chips(fields, "Europe/Moscow")

    assert [(chip.word, chip.value) for chip in found] == [
        ("task", "x"), ("created from", "2026-11-21 00:00"), ("args.a", "1"), ("args.b", "2"),
    ]  # fmt: skip
    assert found[2].without == {**fields, "args": "b:2"}
