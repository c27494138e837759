"""Each statement that touches what the model has is an action of the model, or left out for a reason."""

from __future__ import annotations

from tests.model.actions import ACTIONS
from tests.model.explore import ACTION_MODULES
from tests.model.statements import ACTION_OF, OUTSIDE, touching


def test_touching_statements_have_an_action():
    known = {*ACTION_OF, *OUTSIDE}

    assert touching() - known == set(), "name their action in tests/model/statements.py, and add it to the model"
    assert known - touching() == set(), "tests/model/statements.py names statements that are gone"
    assert not ACTION_OF.keys() & OUTSIDE.keys()


def test_actions_of_statements_exist():
    named = {name for names in ACTION_OF.values() for name in names.split(", ")}

    assert ACTION_MODULES
    assert named - ACTIONS.keys() == set()


def test_statements_of_the_core_are_found():
    assert {"claim", "settle", "reap", "beat", "dl_unblock_next", "_RAISE_FENCE", "assert_owned"} <= touching()
