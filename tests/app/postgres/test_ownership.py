from __future__ import annotations

import copy
import os

import pytest

from app.errors import EmbeddedServerError
from app.postgres.ownership import UsageLock, exclusive


def test_only_the_last_share_given_up_is_the_last(tmp_path):
    first, second, third = (UsageLock(tmp_path / "shares") for _ in range(3))

    assert [second.release(), first.release(), third.release()] == [False, False, True]


def test_a_share_can_be_taken_again_after_the_last(tmp_path):
    assert UsageLock(tmp_path / "shares").release()
    assert UsageLock(tmp_path / "shares").release()


def test_forked_child_leaves_its_parents_share(tmp_path):
    parent, other = UsageLock(tmp_path / "shares"), UsageLock(tmp_path / "shares")
    child = copy.copy(parent)
    child._fd = os.dup(parent._fd)  # what fork() does

    child.detach()
    assert other.release() is False

    os.close(parent._fd)  # what the kernel does when it kills the parent
    assert UsageLock(tmp_path / "shares").release() is True


def test_lock_timeout_names_the_holder(tmp_path):
    lock = tmp_path / "turn"
    with (
        exclusive(lock, timeout_sec=1),
        pytest.raises(EmbeddedServerError, match=f"see who has {lock} open"),
        exclusive(lock, timeout_sec=0.05),
    ):
        pass

    with exclusive(lock, timeout_sec=0.05):
        pass
