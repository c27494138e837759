"""The comparison with peers, as far as it needs none of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import homes
from benchmarks.peers.course import RoundResult, RoundSize, run_round, url_of
from benchmarks.peers.homes import PeerEnvironment, PeerUnavailable, install_peer
from benchmarks.peers.known import DATALOADER, DRIVERS, PEERS, Peer

pytestmark = pytest.mark.superuser("benchmarks make databases of their own")

SIZE = RoundSize(jobs=40, single_jobs=5, pickups=3, concurrency=2, drain_limit_sec=20.0)

# Its store is the pipe itself: an enqueued job has already run.
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
    """A peer whose driver the test writes."""
    monkeypatch.setattr(Peer, "path", property(lambda peer: tmp_path / peer.driver))
    (tmp_path / "with_pipe.py").write_text(DRIVER, encoding="utf-8")
    return Peer("a pipe", "with_pipe.py", (), "keeps nothing")


def test_every_peer_has_a_driver_and_every_driver_a_peer():
    drivers = {path.name for path in DRIVERS.glob("with_*")}

    assert {peer.driver for peer in PEERS} == drivers


def test_a_round_measures_enqueueing_draining_and_picking_up(peer, server_dsn):
    result = run_round(peer, PeerEnvironment(sys.executable), server_dsn, SIZE)

    assert result.one > 0
    assert result.bulk > 0
    assert result.drain > 0
    assert result.drained
    assert len(result.picks) == SIZE.pickups


def test_our_own_driver_works(server_dsn):
    result = run_round(DATALOADER, PeerEnvironment(sys.executable), server_dsn, SIZE)

    assert result.drained
    assert len(result.picks) == SIZE.pickups


def test_failed_driver_is_reported_with_last_log_line(peer, server_dsn, tmp_path):
    (tmp_path / "with_pipe.py").write_text("raise SystemExit('no such thing here')", encoding="utf-8")

    with pytest.raises(PeerUnavailable, match="setup failed: no such thing here"):
        run_round(peer, PeerEnvironment(sys.executable), server_dsn, SIZE)


def test_dead_worker_ends_the_round(peer, server_dsn, tmp_path):
    dying = DRIVER.replace("time.sleep(60)", "sys.exit('out of luck')").replace("bulk=many", "bulk=lambda jobs: None")
    (tmp_path / "with_pipe.py").write_text(dying.replace("one=many", "one=lambda jobs: None"), encoding="utf-8")

    with pytest.raises(PeerUnavailable, match="its worker died: out of luck"):
        run_round(peer, PeerEnvironment(sys.executable), server_dsn, SIZE)


def test_uninstallable_peer_is_left_out_with_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(homes, "_python_candidates", lambda: iter([sys.executable]))
    future = Peer("of the future", "with_pipe.py", ("nothing",), "", oldest_python=(9, 9))

    found, missing = peers.prepare_peers([DATALOADER, future], tmp_path)

    assert list(found) == [DATALOADER]
    assert missing[future].startswith("needs Python 9.9 or newer; found ")


def test_failed_peer_is_not_started_again(peer, server_dsn, tmp_path):
    (tmp_path / "with_pipe.py").write_text("raise SystemExit('gone')", encoding="utf-8")
    missing: dict[Peer, str] = {}

    assert peers.try_round(peer, PeerEnvironment(sys.executable), server_dsn, SIZE, missing) is None
    (tmp_path / "with_pipe.py").write_text(DRIVER, encoding="utf-8")
    assert peers.try_round(peer, PeerEnvironment(sys.executable), server_dsn, SIZE, missing) is None
    assert missing == {peer: "setup failed: gone"}


def test_report_shows_ratios_and_marks_cut_drains(capsys):
    other = Peer("other", "with_other.py", (), "forgets", bulk=False)
    ours, theirs = RoundResult(900, 30_000, 8_000, True, (1.0, 2.0)), RoundResult(500, 500, 2_000, False, (20.0, 40.0))

    peers.print_results(
        {DATALOADER: [ours], other: [theirs]}, {DATALOADER: PeerEnvironment(""), other: PeerEnvironment("")}, SIZE, 1
    )

    output = capsys.readouterr().out
    mine, others = ([cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()[3:5])
    assert mine == ["dataloader", "900", "30,000", "8,000", "1.00 ×", "1.50", "1.99", DATALOADER.differences]
    assert others == ["other", "500", "–", "2,000 *", "0.25 ×", "30.0", "39.8", "forgets"]
    assert "* not drained within 20 s" in output


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        ("host=/tmp/pg port=5433 user=u dbname=d", "postgresql://u@/d?host=/tmp/pg&port=5433"),
        ("host=h user=u password=p@ss dbname=d", "postgresql://u:p%40ss@h:5432/d"),
    ],
)
def test_dsn_becomes_url_for_any_client(dsn, url):
    assert url_of(dsn) == url


def test_ours_needs_no_installation(tmp_path):
    assert install_peer(DATALOADER, tmp_path) == PeerEnvironment(sys.executable)
    assert list(tmp_path.iterdir()) == []


def test_help_lists_the_peers(capsys):
    with pytest.raises(SystemExit) as ended:
        peers.main(["--help"])

    output = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--only" in output
    assert "graphile_worker" in output
    assert Path(DRIVERS).name in output
