from __future__ import annotations

import pytest

from dataloader.app.queue.labels import describe_missing, find_unmet, format_labels, split_tasks


@pytest.mark.parametrize(
    ("requires", "labels", "unmet"),
    [
        ({}, {"gpu": True}, {}),
        ({"gpu": True}, {"gpu": True, "spot": True}, {}),
        ({"gpu": True}, {}, {"gpu": True}),
        ({"gpu": True}, {"gpu": "a100"}, {"gpu": True}),
        ({"spot": False}, {}, {}),
        ({"spot": False}, {"spot": False}, {}),
        ({"spot": False}, {"spot": True}, {"spot": False}),
        ({"spot": False}, {"spot": "maybe"}, {"spot": False}),
        ({"zone": "north"}, {"zone": "north"}, {}),
        ({"zone": "north"}, {"zone": "south"}, {"zone": "north"}),
        ({"zone": "north"}, {}, {"zone": "north"}),
    ],
)
def test_requirement_is_met_by_an_equal_label(requires, labels, unmet):
    assert find_unmet(requires, labels) == unmet


def test_tasks_with_unmet_requirements_are_left_to_others():
    requirements = {"train": {"gpu": True}, "settle": {"spot": False}}
    names = ("load", "settle", "train")

    assert split_tasks(names, requirements, {}) == (("load", "settle"), {"train": {"gpu": True}})
    assert split_tasks(names, requirements, {"gpu": True, "spot": True}) == (
        ("load", "train"),
        {"settle": {"spot": False}},
    )
    assert split_tasks(names, requirements, None) == (names, {})


def test_missing_labels_are_those_that_no_worker_has():
    requires = {"gpu": True, "spot": False}

    alone = describe_missing("train", requires, [{}, {"spot": True}], queue="q")
    together = describe_missing("train", requires, [{"gpu": True, "spot": True}, {}])

    assert alone == "no live worker of queue 'q' has gpu=true (task 'train' requires gpu=true, spot=false)"
    assert together == "no live worker has gpu=true, spot=false (task 'train' requires gpu=true, spot=false)"
    assert format_labels({"zone": "north", "spot": False}) == "zone=north, spot=false"
