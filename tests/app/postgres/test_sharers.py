from __future__ import annotations

import copy
import os

import pytest

from app.errors import EmbeddedServerError
from app.postgres.sharers import Share, turn


def test_only_the_last_share_given_up_is_the_last(tmp_path):
    first, second, third = (Share(tmp_path / "shares") for _ in range(3))

    assert [second.give_up(), first.give_up(), third.give_up()] == [False, False, True]


def test_a_share_can_be_taken_again_after_the_last(tmp_path):
    assert Share(tmp_path / "shares").give_up()
    assert Share(tmp_path / "shares").give_up()


def test_a_forked_child_that_leaves_neither_ends_nor_keeps_its_parents_share(tmp_path):
    parent, other = Share(tmp_path / "shares"), Share(tmp_path / "shares")
    child = copy.copy(parent)
    child._fd = os.dup(parent._fd)  # what fork() does

    child.leave_to_parent()
    assert other.give_up() is False

    os.close(parent._fd)  # what the kernel does when it kills the parent
    assert Share(tmp_path / "shares").give_up() is True


def test_whoever_waits_too_long_for_a_turn_is_told_whom_to_look_for(tmp_path):
    lock = tmp_path / "turn"
    with (
        turn(lock, patience_sec=1),
        pytest.raises(EmbeddedServerError, match=f"see who has {lock} open"),
        turn(lock, patience_sec=0.05),
    ):
        pass

    with turn(lock, patience_sec=0.05):
        pass
