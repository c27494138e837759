"""load.opu against a service that speaks as Gmap2Brief does, and a real PostgreSQL."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from dataloader.pipelines import targets
from dataloader.pipelines.contract import Fail, Stop
from dataloader.pipelines.opu.export import ExportFailed, ExportTooSlow
from dataloader.pipelines.opu.load import ExportIncomplete, RepeatedKey
from dataloader.pipelines.opu.table import TABLE
from dataloader.pipelines.toolkit.errors import (
    BrokenArchive,
    SourceAnswered,
    SourceBroken,
    SourceTooLarge,
    SourceTooSlow,
    SourceTruncated,
    TooFewRows,
    TooManyRejects,
    TruncatedArchive,
    UnsafePath,
)
from tests.support import Process, eventually
from tests.support_sources import RecordingContext, Reply, start_task
from tests.support_sources.gmap import DOWNLOAD, START, STATUS, archive, record, serve

COUNT = f"SELECT count(*) AS rows, min(revision) AS oldest FROM {TABLE}"


def load(ctx=None, **args):
    return start_task("load.opu", args, ctx)


@pytest.fixture
def old(source, rows):
    """What the table held before."""
    serve(source, [b"".join(archive(record(number, revision=-1) for number in range(100)))])
    load()
    source.requests.clear()
    return {"rows": 100, "oldest": -1}


def test_an_export_is_started_waited_for_and_loaded(source, rows):
    ctx = RecordingContext()
    serve(source, archive(map(record, range(12_001))), rows=12_001)

    result = load(ctx, export={"year": 2024})

    assert source.requests_to(START)[0].json == {"year": 2024}
    assert ctx.sleeps == [5, 3]  # ours, then what the service asked for
    assert rows(COUNT) == [{"rows": 12_001, "oldest": 0}]
    assert (result["rows"], result["rejected"], result["unknown_fields"]) == (12_001, 0, [])
    assert [note["state"] for note in ctx.progress_reports if note["stage"] == "export"] == [
        "queued",
        "running",
        "done",
    ]
    assert [note["done"] for note in ctx.progress_reports if note["stage"] == "load"] == [5_000, 10_000, 12_001]
    assert rows(f"SELECT note, plan_value::text, changed_at::text FROM {TABLE} WHERE opu_id = 20") == [
        {"note": 'tab\t, "quotes" and \\ in it', "plan_value": "2.5", "changed_at": "2024-02-01 07:30:00+00"}
    ]


def test_loading_again_gives_the_same_table(source, rows, old):
    packed = b"".join(archive(map(record, range(500))))
    serve(source, [packed])
    load()
    first = rows(f"SELECT * FROM {TABLE} ORDER BY opu_id")
    load()

    assert rows(f"SELECT * FROM {TABLE} ORDER BY opu_id") == first
    assert len(first) == 500


def test_readers_see_the_old_table_or_the_new_one(source, rows, old):
    serve(source, archive(map(record, range(30_000))))
    seen, done = [], threading.Event()

    def look():
        while not done.is_set():
            seen.append(tuple(rows(COUNT)[0].values()))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        load()
        eventually(lambda: (30_000, 0) in seen)
    finally:
        done.set()
        reader.join()

    assert set(seen) == {(100, -1), (30_000, 0)}


def test_a_token_is_sent_where_one_is_known(source, rows, empty_dsn):
    serve(source, archive(map(record, range(3))))
    targets.configure({"gmap2brief": source.url}, {"opu": empty_dsn}, {"gmap2brief": "s3cret"})

    load()

    assert {request.headers["Authorization"] for request in source.requests} == {"Bearer s3cret"}


def test_bad_records_are_named_by_line_and_the_others_loaded(source, rows):
    good = [record(number) for number in range(6)]
    bad: list[Any] = [b"{broken", record(7, period_start="soon"), b"[]", record(8, note="a\x00b"), {"opu_id": 9}]
    serve(source, archive([*good[:3], b"", *bad, *good[3:]]), rows=11)

    result = load()

    assert (result["rows"], result["rejected"]) == (6, 5)
    reasons = {bad["place"]: bad["reason"] for bad in result["rejects"]}
    assert set(reasons) == {"line 5", "line 6", "line 7", "line 9", "row 4, column 'note'"}
    assert "period_start" in reasons["line 6"]


@pytest.mark.parametrize(
    ("records", "args", "error"),
    [
        ([b"{broken"] * 3 + [record(1)], {"max_rejects": 2}, TooManyRejects),
        ([record(1), record(2), record(1)], {}, RepeatedKey),
        ([], {}, TooFewRows),
        ([record(1)], {"at_least": 2}, TooFewRows),
    ],
)
def test_untrusted_archive_keeps_the_old_table(source, rows, old, records, args, error):
    serve(source, archive(records))

    with pytest.raises(error):
        load(**args)

    assert rows(COUNT) == [old]


def test_two_records_of_one_key_are_named(source, rows):
    serve(source, archive([record(1), record(1)]))

    with pytest.raises(RepeatedKey, match=r"\(opu_id, region_code, .*\)=\(1, R01") as caught:
        load()

    assert caught.value.permanent


def test_fewer_records_than_announced_keep_old_table(source, rows, old):
    serve(source, archive(map(record, range(9))), rows=10)

    with pytest.raises(ExportIncomplete, match="was to have 10 records, and its archive had 9") as caught:
        load()

    assert not caught.value.permanent
    assert rows(COUNT) == [old]


def test_archives_that_lie_about_themselves_leave_the_old_table(source, rows, old):
    packed = b"".join(archive(map(record, range(20_000))))
    for reply, error in (
        (Reply(packed[:-1000], length=len(packed)), SourceTruncated),
        (Reply(iter([packed[:-1000]])), TruncatedArchive),
        (Reply(packed[:-1000]), TruncatedArchive),
        (Reply(b"<html>Please log in</html>"), BrokenArchive),
        (Reply(packed[:5000] + b"garbage" * 100 + packed[6000:]), BrokenArchive),
        (Reply(b"", length=10**12), SourceTooLarge),
        (Reply(status=403), SourceAnswered),
    ):
        serve(source, [])
        source.add_route("GET", DOWNLOAD, reply)
        with pytest.raises(error):
            load()
        assert rows(COUNT) == [old], error


@pytest.mark.parametrize(
    "reply", [Reply(b"\x28\xb5\x2f\xfd", stall=True), Reply(b"\x28\xb5\x2f\xfd" * 99, drip_interval_sec=0.05)]
)
def test_a_download_that_stalls_or_drips_ends_by_its_deadline(source, rows, old, reply):
    serve(source, [])
    source.add_route("GET", DOWNLOAD, reply)

    with pytest.raises(SourceTooSlow):
        load(download_sec=0.4)

    assert rows(COUNT) == [old]


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (Reply.from_json({"state": "failed", "error": "disk full"}), ExportFailed, "'failed': disk full"),
        (Reply.from_json({"state": "canceled"}), ExportFailed, "no reason given"),
        (Reply(status=404), ExportFailed, "does not know export e-1"),
        (Reply(status=401), SourceAnswered, "401"),
        (Reply.from_json({"state": "paused"}), SourceBroken, "'paused', which is none of canceled, done, failed"),
        (Reply.from_json({}), SourceBroken, "None"),
        (Reply.from_json(["running"]), SourceBroken, "no JSON object"),
        (Reply(b"<html>"), SourceBroken, "no JSON"),
        (Reply.from_json({"state": "running"}), ExportTooSlow, "still 'running' after 0.2 s"),
        (Reply.from_json({"state": "running"}, headers={"Retry-After": "60"}), ExportTooSlow, "still 'running'"),
    ],
)
def test_an_export_that_is_not_done_is_an_error(source, rows, status, error, message):
    serve(source, [])
    source.add_route("GET", STATUS, status)

    with pytest.raises(error, match=message):
        load(export_sec=0.2, poll_sec=0.01)


@pytest.mark.parametrize("payload", [{}, {"id": ""}, {"id": True}, {"id": {}}, ["e-1"]])
def test_an_export_without_an_id_is_an_error(source, rows, payload):
    source.add_route("POST", START, Reply.from_json(payload))

    with pytest.raises(SourceBroken):
        load()


def test_an_id_cannot_lead_to_another_address(source, rows):
    source.add_route("POST", START, Reply.from_json({"id": "../../admin?x=1#"}))

    with pytest.raises(UnsafePath, match="cannot stand in an address"):
        load()

    assert [request.path for request in source.requests] == [START]


def test_an_id_is_one_step_of_the_address_whatever_it_holds(source, rows):
    source.add_route("POST", START, Reply.from_json({"id": "admin?x=1#"}))

    with pytest.raises(ExportFailed):
        load()

    assert source.requests[-1].path == "/export/opu/admin%3Fx%3D1%23/status"


def test_an_id_may_be_a_number(source, rows):
    serve(source, archive([record(1)]))
    source.add_route("POST", START, Reply.from_json({"id": 5}))
    source.add_route("GET", "/export/opu/5/status", Reply.from_json({"state": "done", "rows": "many"}))
    source.add_route("GET", "/export/opu/5/download", Reply(archive([record(1)])))

    assert load()["export"] == "5"


def test_a_stop_ends_it_between_batches_and_leaves_the_old_table(source, rows, old):
    serve(source, archive(map(record, range(20_000))))
    ctx = RecordingContext()
    ctx.stop_when = lambda: any(note["done"] == 10_000 for note in ctx.progress_reports)

    with pytest.raises(Stop):
        load(ctx)

    assert rows(COUNT) == [old]


def test_args_that_do_not_fit_are_named(places):
    with pytest.raises(Fail, match="poll_sec.*max_rejects"):
        load(poll_sec=0, max_rejects=-1)


WORK = """
import json, sys
import psutil
from dataloader.pipelines import targets
from dataloader.pipelines.opu.load import OpuArguments, load_opu
from tests.support_sources import RecordingContext

url, dsn, stop_at = sys.argv[1:]
targets.configure({"gmap2brief": url}, {"opu": dsn})
ctx = RecordingContext()
sizes = [psutil.Process().memory_info().rss]
def half(done=None, *_, **__):
    sizes.append(psutil.Process().memory_info().rss)
    if done and done >= int(stop_at):
        print("half way", flush=True)
        sys.stdin.read()
ctx.progress = half
result = load_opu(OpuArguments(), ctx)
grown = (max(sizes) - sizes[0]) / 1024**2
print("result", json.dumps({"rows": result["rows"], "grown_mb": grown, "looks": len(sizes)}), flush=True)
"""


def test_killed_load_keeps_old_table_and_is_retried(source, rows, old, empty_dsn, tmp_path):
    serve(source, archive(map(record, range(20_000))))
    with Process.python(WORK, source.url, empty_dsn, "10000", output=tmp_path / "killed.log") as process:
        process.wait_for_line("half way")
        during = rows(COUNT)
        process.kill()

    assert during == [old]
    assert rows(COUNT) == [old]

    serve(source, archive(map(record, range(20_000))))
    load()

    assert rows(COUNT) == [{"rows": 20_000, "oldest": 0}]
    assert rows("SELECT relname FROM pg_class WHERE relname LIKE 'dl_a%'") == []


def test_a_large_archive_takes_little_memory(source, rows, empty_dsn, tmp_path):
    serve(source, archive(map(record, range(100_000))), rows=100_000)

    with Process.python(WORK, source.url, empty_dsn, "1000000", output=tmp_path / "large.log") as process:
        line = process.wait_for_line("result", 90)

    result = json.loads(line.partition("result ")[2])
    assert result["rows"] == 100_000
    assert result["looks"] > 20
    assert result["grown_mb"] < 100
