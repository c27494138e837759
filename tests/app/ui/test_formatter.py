"""Times and retry policies as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dataloader.app.ui.formatter import Formatter
from dataloader.pipelines.contract import show_policy
from dataloader.pipelines.retry import Exponential, Fixed, Linear, Policy, Table


def plain(text: str) -> str:
    """With plain spaces."""
    return text.replace("\u00a0", " ")


class OwnPolicy:
    def pause(self, attempt: int) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (timedelta(milliseconds=241), "now"),
        (timedelta(seconds=1.2), "1 s ago"),
        (timedelta(minutes=3, seconds=20.1), "3 min 20 s ago"),
        (timedelta(milliseconds=-200), "now"),
        (timedelta(hours=-2), "in 2 h"),
    ],
)
def test_time_ago_has_whole_seconds(age: timedelta, expected: str):
    assert plain(Formatter("UTC").time_ago(datetime.now(UTC) - age)) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Fixed(5), "5 s after each attempt"),
        (Linear(), "30 s more after each attempt, at most 7 d"),
        (Exponential(10), "10 s, then × 2 after each attempt, at most 1 h, ± 10 %"),
        (Exponential(0.5, factor=1.5, jitter=0), "500 ms, then × 1.5 after each attempt, at most 1 h"),
        (Table((60, 300, 1800)), "1 min, 5 min, 30 min, the last one repeated"),
        (OwnPolicy(), "as OwnPolicy in the code decides"),
    ],
)
def test_retry_policy_is_a_sentence(policy: Policy, expected: str):
    assert plain(Formatter("UTC").retry_policy(show_policy(policy))) == expected


@pytest.mark.parametrize(
    ("value", "text"), [(9_130, "≈ 9 130"), (123_456, "≈ 123 k"), (999_600, "≈ 1 M"), (1_072_963, "≈ 1.07 M")]
)
def test_estimate_is_short(value, text):
    assert plain(Formatter.about(value)) == text


@pytest.mark.parametrize(("value", "text"), [(9_130, "9 130"), (1_960_551, "1.96 M")])
def test_short_number_has_three_digits_where_it_is_large(value, text):
    assert plain(Formatter.short_number(value)) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.004, "0.4 %"), (0.93, "93 %"), (0.997, "99.7 %"), (0.9999, "99.9 %"), (1, "100 %"), (None, "")],
)
def test_share_that_is_not_all_is_never_a_hundred_percent(share, text):
    assert plain(Formatter.percent(share)) == text


def test_large_numbers_in_sentences_are_grouped_as_those_of_pages():
    text = "18,438 is less than 48,200.5; ids 1,23,456 and 1,2345 stay, 1,072,963 rows"

    assert plain(Formatter.group_digits(text)) == (
        "18 438 is less than 48 200.5; ids 1,23,456 and 1,2345 stay, 1 072 963 rows"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (Formatter.duration(12_081), "3_h_21_min"),
        (Formatter.duration(0.25), "250_ms"),
        (Formatter.duration(2), "2_s"),
        (Formatter.counting(3.7), "3_s"),
        (Formatter.percent(0.12), "12_%"),
        (Formatter.number(1_072_963), "1_072_963"),
        (Formatter.counted(12_751, "row"), "12_751 rows"),
        (Formatter.byte_size(3_500_000), "3.3_MB"),
        (Formatter.rate(48_200), "48_200/s"),
        (Formatter.shorten("stalled for 5561 s of 10,000"), "stalled for 1_h_32_min of 10_000"),
    ],
)
def test_no_line_ends_between_a_number_and_its_unit(text: str, expected: str):
    assert text == expected.replace("_", "\u00a0")
