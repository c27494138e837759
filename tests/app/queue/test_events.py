from __future__ import annotations

import pytest

from dataloader.app.queue import events
from dataloader.app.queue.events import EventReader, subtract
from tests.support.queue_fixture import QueueFixture

END = 2**63 - 1


def read(reader: EventReader) -> list[str]:
    """The keys of the jobs whose events came, in three looks."""
    return [event.payload["producer"] for _ in range(3) for event in reader.poll()]


def add(queue_db: QueueFixture, *names: str) -> None:
    for name in names:
        queue_db.enqueue(name, producer=name)


LATE = "INSERT INTO dl_jobs (queue, task, lock_key, producer) VALUES ('q', 't', 'late', 'late')"


def test_event_reader_starts_now_or_after_given_event(queue_db):
    add(queue_db, "before")
    reader = EventReader(queue_db.session)
    assert read(reader) == []
    add(queue_db, "a", "b")

    assert read(reader) == ["a", "b"]
    place = reader.cursor
    add(queue_db, "c")
    assert read(reader) == ["c"]
    assert read(EventReader(queue_db.session, after=place)) == ["c"]
    assert place.isdigit()


def test_event_committed_late_arrives_once(queue_db):
    reader = EventReader(queue_db.session)
    read(reader)
    with queue_db.open_transaction() as step:
        step(LATE)
        add(queue_db, "early")
        assert read(reader) == ["early"]
        place = reader.cursor
        assert "~" in place
    resumed = EventReader(queue_db.session, after=place)

    assert read(reader) == ["late"]
    assert read(resumed) == ["late"]
    assert reader.cursor == resumed.cursor
    assert reader.cursor.isdigit()


def test_open_transaction_belongs_to_readers_future(queue_db):
    with queue_db.open_transaction() as step:
        step(LATE)
        add(queue_db, "early")
        reader = EventReader(queue_db.session)
        assert read(reader) == []

    assert read(reader) == ["late"]


def test_rolled_back_event_number_is_skipped_after_a_while(queue_db):
    reader = EventReader(queue_db.session)
    read(reader)
    connection = queue_db.connect()
    connection.cursor().execute(LATE)
    queue_db.sql("SELECT setval('dl_job_events_event_id_seq', nextval('dl_job_events_event_id_seq') + 1000)")
    add(queue_db, "early")
    assert read(reader) == ["early"]
    connection.rollback()

    assert read(reader) == []
    assert reader.cursor.isdigit()


def test_more_than_one_look_can_bring_comes_in_several(queue_db, monkeypatch):
    reader = EventReader(queue_db.session)
    read(reader)
    monkeypatch.setattr(events, "MAX_EVENTS_PER_POLL", 2)
    add(queue_db, *"abcde")

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


@pytest.mark.parametrize("result", ["", "x", "5~", "9~7-", "9~8,7", "9~a-b", "-1", "9" * 19, "5~9"])
def test_what_is_no_place_is_refused(queue_db, result):
    if result in ("5~", "9~7-"):
        EventReader(queue_db.session, after=result)  # nothing behind the mark is nothing pending
        return
    with pytest.raises(ValueError, match="is no"):
        EventReader(queue_db.session, after=result)


def test_a_place_with_too_many_gaps_is_the_first_of_them(queue_db, monkeypatch):
    monkeypatch.setattr(events, "_MAX_GAPS", 1)

    assert EventReader(queue_db.session, after="9~7").cursor == "9~7"
    assert EventReader(queue_db.session, after="9~4-5").cursor == "9~4-5"
    with pytest.raises(ValueError, match="no cursor"):
        EventReader(queue_db.session, after="9~4,7")


def test_events_of_a_job_are_read_in_pages(queue_db):
    run = queue_db.enqueue_and_claim("k")
    queue_db.settle(run)
    every = queue_db.queue.events(run.id)

    assert [event.kind for event in every] == ["queued", "picked", "done"]
    assert queue_db.queue.events(run.id, after=every[0].event_id, limit=1) == [every[1]]
