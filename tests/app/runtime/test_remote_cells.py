from __future__ import annotations

import pytest

from app.runtime.remote_cells import remote_cells
from dataloader import ServiceUnavailable
from tests.app.cli.fake_service import Answer, standing_in


def test_cell_is_asked_with_its_key():
    with standing_in() as service:
        service.unruly.extend([Answer(body={"ready": 1}), Answer(body={"ready": 2})])
        plain, keyed = service.url, {"url": f"{service.url}/", "key": {"$secret": "south"}}
        cells = remote_cells({"north": plain, "south": keyed}, {"south": "dlk_x"}.__getitem__)

        assert [cell.read_overview()["ready"] for cell in cells.values()] == [1, 2]

    assert {cell.url for cell in cells.values()} == {service.url}
    assert [(asked.path, asked.key) for asked in service.asked] == [
        ("/api/v1/overview", None),
        ("/api/v1/overview", "Bearer dlk_x"),
    ]


def test_cell_that_is_not_there_is_unavailable():
    with pytest.raises(ServiceUnavailable):
        remote_cells({"north": "http://127.0.0.1:1"}, str)["north"].read_overview()
