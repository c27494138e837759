"""The live key of jobs that are unique by some of their args."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.unique import unique_live_key


class Args(BaseModel):
    shop: int
    day: str = "2030-01-01"


def key_of(**args: Any) -> str:
    return unique_live_key("load", ["a", "b"], args)


@pytest.mark.parametrize(
    ("args", "equal"),
    [
        ({"a": {"x": 1, "y": {"v": 1, "w": 2}}}, {"a": {"y": {"w": 2, "v": 1}, "x": 1}}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": [1, {"x": 2.0}]}, {"a": [1.0, {"x": 2}]}),
        ({"a": 1}, {"a": 1, "b": None}),
    ],
)
def test_equal_values_have_one_key(args: dict[str, Any], equal: dict[str, Any]):
    assert key_of(**args) == key_of(**equal)


@pytest.mark.parametrize(
    ("args", "other"),
    [({"a": 1}, {"a": "1"}), ({"a": 1}, {"a": True}), ({"a": [1, 2]}, {"a": [2, 1]}), ({"a": 1}, {"b": 1})],
)
def test_different_values_have_different_keys(args: dict[str, Any], other: dict[str, Any]):
    assert key_of(**args) != key_of(**other)


def test_tasks_declare_the_defaults_of_their_args():
    pipelines = Pipelines()

    @pipelines.register("named", spread=True, unique_by=("shop",))
    def named(shop: int, day: str = "2030-01-01", more: object = None) -> None: ...

    @pipelines.register("model", args=Args, limits={"shop:{shop}": 1})
    def model(args: Any) -> None: ...

    @pipelines.register("plain", spread=True)
    def plain(day: str = "2030-01-01") -> None: ...

    declared = pipelines.declared_job_fields()
    defaults = {"day": "2030-01-01"}
    assert declared == {
        "named": {"unique_by": ["shop"], "defaults": defaults},
        "model": {"limits": {"shop:{shop}": 1}, "defaults": defaults},
    }
