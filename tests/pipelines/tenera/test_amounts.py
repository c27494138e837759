from decimal import Decimal

import pytest

from pipelines.tenera.amounts import BadAmount, NumberFormat


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("81.71", "81.71"),
        ("82,500.10", "82500.10"),
        ("1 234 567", "1234567"),
        ("312.45K", "312450"),
        ("1.5m", "1500000"),
        ("2B", "2000000000"),
        ("-1.40%", "-1.40"),
        ("\u22120.5", "-0.5"),
        ("+3", "3"),
        (0.1, "0.1"),
        (7, "7"),
        (Decimal("1.10"), "1.10"),
    ],
)
def test_numbers_come_in_several_forms(written, meant):
    assert NumberFormat().parse(written) == Decimal(meant)


def test_a_comma_is_a_point_where_the_source_says_so():
    numbers = NumberFormat(decimal=",", thousands=".")

    assert numbers.parse("89,2887") == Decimal("89.2887")
    assert numbers.parse("1.234,5") == Decimal("1234.5")


@pytest.mark.parametrize("written", [None, "", " ", "-", "n/a", "NaN"])
def test_nothing_is_nothing(written):
    assert NumberFormat().parse(written) is None


@pytest.mark.parametrize("written", ["abc", "1,5", "12,34", "1.2.3", "K", "1e5", "9" * 61, True, [], {}])
def test_what_is_no_number_is_refused(written):
    with pytest.raises(BadAmount):
        NumberFormat().parse(written)
