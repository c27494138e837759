"""The lines of a chart as the page has them without scripts."""

from __future__ import annotations

from dataloader.app.ui.line_chart import LineChart


def test_line_with_a_gap_has_two_segments():
    chart = LineChart("Depth", "jobs", ("ready", "running"), [0, 60, 120, 180], [[1, None, 2, 4], [None] * 4])

    assert chart.segments == [("ready", "0.0,152.5"), ("ready", "400.0,105.0 600.0,10.0")]


def test_line_of_zeros_is_at_the_bottom():
    assert LineChart("Depth", "jobs", ("ready",), [0], [[0]]).segments == [("ready", "0.0,200.0")]
