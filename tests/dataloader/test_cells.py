"""Cells: which one a key belongs to, and jobs in two real services."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader import CellClient, CellMap, CellUnavailable, Client, KeyMoving, NotFound
from tests.support import Databases
from tests.support.api_server import serving
from tests.support.queue_fixture import QueueFixture

NAMES = st.lists(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,9}", fullmatch=True), min_size=2, max_size=6, unique=True)
JOB: dict[str, Any] = {"task": "t", "queue": "q"}


def map_of(*names: str, version: int = 1) -> CellMap:
    return CellMap(version, dict.fromkeys(names, "http://127.0.0.1:1"))


def key_of(cells: CellMap, cell: str) -> str:
    return next(key for key in map("key-{}".format, range(1_000)) if cells.cell_of(key) == cell)


def test_cell_of_a_key_is_the_same_everywhere():
    """A change here would send keys to other cells than the clients of earlier versions do."""
    cells = map_of("a", "b", "c", "north-1")

    assert [cells.cell_of(key) for key in ("", "shop:7", "ключ", "k" * 1_000)] == ["north-1", "a", "c", "north-1"]


@given(NAMES, st.lists(st.text(st.characters(codec="utf-8")), max_size=20))
@settings(max_examples=40)
def test_keys_move_to_an_added_cell_alone(names, keys):
    *known, added = names
    before, after = map_of(*known), map_of(*reversed(names), version=2)

    moved = after.moved_keys(before, keys)

    assert {after.cell_of(key) for key in moved} <= {added}
    assert moved == [key for key in keys if after.cell_of(key) == added]


@pytest.mark.parametrize("count", [1, 3, 8])
def test_added_cell_takes_its_share_of_the_keys(count):
    names, keys = [f"cell-{n}" for n in range(count + 1)], [f"key-{n}" for n in range(20_000)]

    shares = Counter(map(map_of(*names).cell_of, keys))
    moved = map_of(*names, version=2).moved_keys(map_of(*names[:-1]), keys)

    fair_share = len(keys) / len(names)
    assert all(share == pytest.approx(fair_share, rel=0.1) for share in shares.values())
    assert len(moved) == shares[names[-1]]


@pytest.mark.parametrize("name", ["", "A", "a b", "a\nb", "-a", "x" * 51])
def test_map_with_an_invalid_name_is_refused(name):
    with pytest.raises(ValueError, match="is not a cell's name"):
        map_of(name)


def test_maps_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="at least one cell"):
        map_of()
    with pytest.raises(ValueError, match="version 2, not less than 2"):
        CellClient(map_of("a", version=2), previous=map_of("a", version=2))
    with pytest.raises(ValueError, match="needs the previous map"):
        CellClient(map_of("a"), holds_moved_keys=True)


@pytest.fixture(scope="module")
def dsns(databases: Databases) -> Iterator[dict[str, str]]:
    with databases.fresh() as first, databases.fresh() as second:
        yield {"a": first, "b": second}


@pytest.fixture(scope="module")
def urls(dsns: dict[str, str]) -> Iterator[dict[str, str]]:
    with serving(dsns["a"]) as first, serving(dsns["b"]) as second:
        yield {"a": first, "b": second}


@pytest.fixture
def no_one() -> Iterator[str]:
    """An address where nothing answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_job_is_in_the_cell_of_its_key_and_is_found(urls):
    cells = CellClient(CellMap(1, urls))

    jobs = [cells.trigger(**JOB, lock_key=f"key-{n}") for n in range(8)]

    assert {job["cell"] for job in jobs} == {"a", "b"}
    assert [job["cell"] for job in jobs] == [cells.map.cell_of(f"key-{n}") for n in range(8)]
    for job in jobs:
        assert cells.find(job["job_id"])["cell"] == job["cell"]
        assert cells.client(job["cell"]).job(job["job_id"])["status"] == "queued"
    with pytest.raises(NotFound):
        cells.find(uuid4())


def test_job_goes_to_the_cell_of_the_chosen_field(urls):
    cells = CellClient(CellMap(1, urls), by="queue")

    triggered = cells.trigger("t", queue="etl", lock_key="k")

    assert triggered["cell"] == cells.map.cell_of("etl")
    with pytest.raises(ValueError, match="needs a lock_key"):
        CellClient(CellMap(1, urls)).trigger("t", queue="etl")


def test_keys_of_an_unavailable_cell_wait_and_others_do_not(urls, no_one):
    away = Client(no_one, retry_timeout_sec=0)
    cells = CellClient(CellMap(1, {"a": urls["a"], "b": away}))

    job = cells.trigger(**JOB, lock_key=key_of(cells.map, "a"))

    with pytest.raises(CellUnavailable, match="cell 'b' is unavailable: cannot connect") as unavailable:
        cells.trigger(**JOB, lock_key=key_of(cells.map, "b"))
    assert (unavailable.value.cell, unavailable.value.sent) == ("b", False)
    assert cells.find(job["job_id"])["cell"] == "a"
    with pytest.raises(CellUnavailable, match="cell 'b'"):  # it may be there
        cells.find(uuid4())


def test_moved_key_is_sent_to_its_new_cell_after_its_last_job(urls, dsns):
    before, after = CellMap(1, {"a": urls["a"]}), CellMap(2, urls)
    moved, stays = key_of(after, "b"), key_of(after, "a")
    old = CellClient(before).trigger(**JOB, lock_key=moved)
    holding = CellClient(after, previous=before, holds_moved_keys=True)
    moving = CellClient(after, previous=before)

    with pytest.raises(KeyMoving, match="once its jobs there have ended"):
        moving.trigger(**JOB, lock_key=moved)
    assert moving.trigger(**JOB, lock_key=stays)["cell"] == "a"
    assert moving.client("a").cancel(old["job_id"])["status"] == "canceled"
    with pytest.raises(KeyMoving, match="and is held until then"):
        holding.trigger(**JOB, lock_key=moved)
    assert moving.trigger(**JOB, lock_key=moved)["cell"] == "b"


def test_open_job_behind_many_newer_ones_holds_its_key(urls, dsns):
    before, after = CellMap(1, {"a": urls["a"]}), CellMap(2, urls)
    key = next(key for key in map("deep-{}".format, range(1_000)) if after.cell_of(key) == "b")
    CellClient(before).trigger(**JOB, lock_key=key)
    queue = QueueFixture(dsns["a"])
    queue.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, status, created_at, finished_at)"
        " SELECT 'q', 't', %s, 'succeeded', now() + n * interval '1 s', now() FROM generate_series(1, 20000) n",
        key,
    )
    queue.close()

    with pytest.raises(KeyMoving):
        CellClient(after, previous=before).trigger(**JOB, lock_key=key)
