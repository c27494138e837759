"""Public names change only on purpose: `python -m tests.support.public_names` accepts a change, which the changelog
names.
"""

from __future__ import annotations

import pytest

from tests.support.public_names import SNAPSHOTS, current_text, saved_text


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_public_names_match_their_snapshot(name: str):
    assert current_text(name).splitlines() == saved_text(name).splitlines()


def test_snapshots_hold_well_known_names():
    assert "DL_HEARTBEAT_SEC=10" in saved_text("settings").splitlines()
    assert "column dl_jobs.lock_key text not null" in saved_text("database_objects")
    assert "reaper.requeued" in saved_text("log_events").splitlines()
    assert "dataloader_jobs" in saved_text("metrics").splitlines()
    assert {"dataloader.register", "dataloader.testing.FakeContext"} <= set(saved_text("python_names").splitlines())
    assert any(line.startswith("dataloader trigger ") for line in saved_text("commands").splitlines())
