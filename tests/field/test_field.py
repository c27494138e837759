"""The first hour in each place where users live: `make field`."""

from __future__ import annotations

import os

import pytest

from tests.field import database_places, host_places, units  # noqa: F401 - they add their places to the list
from tests.field.first_hour import FirstHour
from tests.field.ground import Ground
from tests.field.places import ALLOWED_SKIPS, Place, Unavailable, is_ci, selected_places
from tests.field.table import write_row

pytestmark = [pytest.mark.field, pytest.mark.timeout(900)]


@pytest.mark.parametrize("place", selected_places(os.environ.get("PLACES", "")), ids=lambda place: place.name)
def test_first_hour(place: Place, ground: Ground):
    try:
        with place.open(ground) as deployment:
            outcomes = FirstHour(deployment, ground.wheels).run()
    except Unavailable as reason:
        write_row(place, [], skipped=str(reason))
        if is_ci() and place.name not in ALLOWED_SKIPS:
            pytest.fail(f"this is CI, where every place must be: {reason}")
        pytest.skip(str(reason))
    write_row(place, outcomes)
    failed = [f"{one.step}: {one.error}" for one in outcomes if one.error]
    assert not failed, "\n\n".join(failed)
