"""The comparison with peers: what does not need any of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import homes
from benchmarks.peers.course import Size, Taken, run, url_of
from benchmarks.peers.homes import Home, NotToBeHad, settle
from benchmarks.peers.known import ALL, DRIVERS, OURS, Peer

SIZE = Size(jobs=40, singly=5, picks=3, concurrency=2, limit=20.0)

# Its store is the pipe itself: whatever is enqueued has run.
DRIVER = f"""
import sys, time
sys.path.insert(0, {str(DRIVERS)!r})
import protocol

def many(jobs):
    for _ in range(jobs):
        protocol.note()

protocol.drive(setup=lambda: None, work=lambda: time.sleep(60), one=many, bulk=many)
"""


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """A peer with a driver of the test's own."""
    monkeypatch.setattr(Peer, "path", property(lambda it: tmp_path / it.driver))
    (tmp_path / "with_pipe.py").write_text(DRIVER, encoding="utf-8")
    return Peer("a pipe", "with_pipe.py", (), "keeps nothing")


def test_every_peer_has_a_driver_and_every_driver_a_peer():
    drivers = {path.name for path in DRIVERS.glob("with_*")}

    assert {one.driver for one in ALL} == drivers


def test_a_round_measures_enqueueing_draining_and_picking_up(peer, server_dsn):
    taken = run(peer, Home(sys.executable), server_dsn, SIZE)

    assert taken.one > 0
    assert taken.bulk > 0
    assert taken.drain > 0
    assert taken.drained
    assert len(taken.picks) == SIZE.picks


def test_a_driver_that_fails_is_told_with_its_last_words(peer, server_dsn, tmp_path):
    (tmp_path / "with_pipe.py").write_text("raise SystemExit('no such thing here')", encoding="utf-8")

    with pytest.raises(NotToBeHad, match="setup failed: no such thing here"):
        run(peer, Home(sys.executable), server_dsn, SIZE)


def test_a_worker_that_dies_is_not_waited_for(peer, server_dsn, tmp_path):
    dying = DRIVER.replace("time.sleep(60)", "sys.exit('out of luck')").replace("bulk=many", "bulk=lambda jobs: None")
    (tmp_path / "with_pipe.py").write_text(dying.replace("one=many", "one=lambda jobs: None"), encoding="utf-8")

    with pytest.raises(NotToBeHad, match="its worker died: out of luck"):
        run(peer, Home(sys.executable), server_dsn, SIZE)


def test_a_peer_that_cannot_be_installed_is_left_out_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(homes, "_pythons", lambda: iter([sys.executable]))
    future = Peer("of the future", "with_pipe.py", ("nothing",), "", oldest_python=(9, 9))

    found, missing = peers.settled([OURS, future], tmp_path)

    assert list(found) == [OURS]
    assert missing[future].startswith("needs Python 9.9 or newer; there are ")


def test_what_one_round_has_shown_to_fail_is_not_tried_again(peer, server_dsn, tmp_path):
    (tmp_path / "with_pipe.py").write_text("raise SystemExit('gone')", encoding="utf-8")
    missing: dict[Peer, str] = {}

    assert peers.tried(peer, Home(sys.executable), server_dsn, SIZE, missing) is None
    (tmp_path / "with_pipe.py").write_text(DRIVER, encoding="utf-8")
    assert peers.tried(peer, Home(sys.executable), server_dsn, SIZE, missing) is None
    assert missing == {peer: "setup failed: gone"}


def test_the_report_has_ratios_of_ours_and_owns_up_to_what_was_cut_short(capsys):
    other = Peer("other", "with_other.py", (), "forgets", bulk=False)
    ours, theirs = Taken(900, 30_000, 8_000, True, (1.0, 2.0)), Taken(500, 500, 2_000, False, (20.0, 40.0))

    peers.show({OURS: [ours], other: [theirs]}, {OURS: Home(""), other: Home("")}, SIZE, 1)

    told = capsys.readouterr().out
    mine, others = ([cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines()[3:5])
    assert mine == ["dataloader", "900", "30,000", "8,000", "1.00 ×", "1.50", "1.99", OURS.differs]
    assert others == ["other", "500", "–", "2,000 *", "0.25 ×", "30.0", "39.8", "forgets"]
    assert "* not drained within 20 s" in told


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        ("host=/tmp/pg port=5433 user=u dbname=d", "postgresql://u@/d?host=/tmp/pg&port=5433"),
        ("host=h user=u password=p@ss dbname=d", "postgresql://u:p%40ss@h:5432/d"),
    ],
)
def test_a_store_has_an_address_that_every_language_reads(dsn, url):
    assert url_of(dsn) == url


def test_ours_needs_no_installation(tmp_path):
    assert settle(OURS, tmp_path) == Home(sys.executable)
    assert list(tmp_path.iterdir()) == []


def test_help_tells_what_is_compared(capsys):
    with pytest.raises(SystemExit) as ended:
        peers.main(["--help"])

    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--only" in told
    assert "graphile_worker" in told
    assert Path(DRIVERS).name in told
