from __future__ import annotations

import pytest

from app.queue import events
from app.queue.events import EventReader, subtract
from tests.support.queue_fixture import QueueFixture

END = 2**63 - 1


def read(reader: EventReader) -> list[str]:
    """The keys of the jobs whose events came, in three looks."""
    return [event.payload["producer"] for _ in range(3) for event in reader.poll()]


def add(desk: QueueFixture, *names: str) -> None:
    for name in names:
        desk.enqueue(name, producer=name)


LATE = "INSERT INTO dl_jobs (queue, task, lock_key, producer) VALUES ('q', 't', 'late', 'late')"


def test_a_reader_hears_what_happens_from_now_on_or_from_the_place_it_is_told(desk):
    add(desk, "before")
    reader = EventReader(desk.session)
    assert read(reader) == []
    add(desk, "a", "b")

    assert read(reader) == ["a", "b"]
    place = reader.cursor
    add(desk, "c")
    assert read(reader) == ["c"]
    assert read(EventReader(desk.session, after=place)) == ["c"]
    assert place.isdigit()


def test_an_event_that_is_committed_after_a_later_one_comes_too_and_once(desk):
    reader = EventReader(desk.session)
    read(reader)
    with desk.open_transaction() as step:
        step(LATE)
        add(desk, "early")
        assert read(reader) == ["early"]
        place = reader.cursor
        assert "~" in place
    resumed = EventReader(desk.session, after=place)

    assert read(reader) == ["late"]
    assert read(resumed) == ["late"]
    assert reader.cursor == resumed.cursor
    assert reader.cursor.isdigit()


def test_what_is_under_way_when_a_reader_begins_belongs_to_its_future(desk):
    with desk.open_transaction() as step:
        step(LATE)
        add(desk, "early")
        reader = EventReader(desk.session)
        assert read(reader) == []

    assert read(reader) == ["late"]


def test_a_number_that_was_rolled_back_is_given_up_and_jumps_are_no_gaps_for_long(desk):
    reader = EventReader(desk.session)
    read(reader)
    connection = desk.connect()
    connection.cursor().execute(LATE)
    desk.sql("SELECT setval('dl_job_events_event_id_seq', nextval('dl_job_events_event_id_seq') + 1000)")
    add(desk, "early")
    assert read(reader) == ["early"]
    connection.rollback()

    assert read(reader) == []
    assert reader.cursor.isdigit()


def test_more_than_one_look_can_bring_comes_in_several(desk, monkeypatch):
    reader = EventReader(desk.session)
    read(reader)
    monkeypatch.setattr(events, "MAX_EVENTS_PER_POLL", 2)
    add(desk, *"abcde")

    assert [event.payload["producer"] for event in reader.poll()] == ["a", "b"]
    assert read(reader) == ["c", "d", "e"]


@pytest.mark.parametrize(
    ("ids", "safe", "left"),
    [
        ([], 0, [(5, 8), (20, END)]),
        ([6, 20, 21, 30], 0, [(5, 6), (7, 8), (22, 30), (31, END)]),
        ([6, 20], 7, [(21, END)]),
        ([20], 25, [(26, END)]),
        ([5, 6, 7], 5, [(20, END)]),
    ],
)
def test_ranges_lose_what_was_read_and_what_will_never_come(ids, safe, left):
    assert subtract([(5, 8), (20, END)], ids, safe) == left


@pytest.mark.parametrize("told", ["", "x", "5~", "9~7-", "9~8,7", "9~a-b", "-1", "9" * 19, "5~9"])
def test_what_is_no_place_is_refused(desk, told):
    if told in ("5~", "9~7-"):
        EventReader(desk.session, after=told)  # nothing behind the mark is nothing pending
        return
    with pytest.raises(ValueError, match="is no"):
        EventReader(desk.session, after=told)


def test_a_place_with_too_many_gaps_is_the_first_of_them(desk, monkeypatch):
    monkeypatch.setattr(events, "_MAX_GAPS", 1)

    assert EventReader(desk.session, after="9~7").cursor == "9~7"
    assert EventReader(desk.session, after="9~4-5").cursor == "9~4-5"
    with pytest.raises(ValueError, match="no cursor"):
        EventReader(desk.session, after="9~4,7")
