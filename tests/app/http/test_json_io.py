"""What is read, what is refused, and how it is named."""

from __future__ import annotations

import json

import pytest

from dataloader.app.http.json_io import MAX_ERRORS, InvalidJson, join_path, parse


def faults(text: str | bytes, max_depth: int = 64) -> dict[str, str]:
    body = text.encode() if isinstance(text, str) else text
    return {fault.field: fault.message for fault in parse(body, max_depth=max_depth).errors}


def test_valid_json_is_parsed():
    value = {"a": [1, -2.5, 1e300, True, None, "Привет 👋 \u2028"], "b": {"c": {}}, "big": 10**299}

    reading = parse(json.dumps(value).encode(), max_depth=4)

    assert reading.value == value
    assert reading.errors == ()


def test_a_whole_surrogate_pair_is_a_character():
    assert parse(rb'"\ud83d\ude00"', max_depth=1).value == "😀"
    assert faults(rb'"\ud83d\ude00"') == {}


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"{", "line 1, column 2"),
        (b'{"a": 1,\n}', "line 2"),
        (b"{'a': 1}", "line 1, column 2"),
        (b'{"a": 01}', "column"),
        (b'{"a": "\n"}', "control character"),
        (b'{"a": "\xff"}', "byte 7"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        ("\ufeff{}".encode(), "not JSON"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a": 1} x', "Extra data"),
        (b"\x00", "not JSON"),
    ],
)
def test_invalid_json_error_names_its_position(body, result):
    with pytest.raises(InvalidJson, match=result):
        parse(body, max_depth=64)


@pytest.mark.parametrize(
    ("text", "field", "result"),
    [
        (r'{"a": "x\u0000y"}', "a", "NUL"),
        (r'{"a": {"b\u0000": 1}}', r'a["b\u0000"]', "NUL"),
        (r'{"a": ["\ud800"]}', "a[0]", "surrogate"),
        (r'{"\udc00": 1}', r'"\udc00"', "surrogate"),
        ('{"a": NaN}', "a", "NaN is not a JSON number"),
        ('{"a": [0, -Infinity]}', "a[1]", "-Infinity"),
        ('{"a": 1e5000}', "a", "beyond"),
        ('{"a": -1e999}', "a", "beyond"),
        ('{"a": {"b": ' + "9" * 5000 + "}}", "a.b", "5000 digits"),
        ('{"a": -' + "9" * 301 + "}", "a", "301 digits"),
        ('{"a": 1, "a": 1}', "a", "duplicate"),
        ('{"x": [{"b": 1, "b": 2}]}', "x[0].b", "duplicate"),
        ("[" * 65 + "]" * 65, "[0]" * 64, "deeper than 64"),
        ('{"a": {"b": ' + "[" * 70 + "]" * 70 + "}}", "a.b" + "[0]" * 62, "deeper"),
        ('{"a": 1, "b": ' + "[" * 5000 + "]" * 5000 + "}", "b", "deeper"),
        ("[" * 5000, "body", "deeper"),
        ('{"x": [[]], "y": {"a": "b"}, "c": ' + "[" * 5000, "c", "deeper"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "a", "deeper"),
        ("NaN", "body", "NaN"),
        (r'"\u0000"', "body", "NUL"),
        (r'"\ud800"', "body", "surrogate"),
    ],
)
def test_rejected_value_is_named_by_its_path(text, field, result):
    found = faults(text)

    assert list(found) == [field]
    assert result in found[field]


def test_nesting_beyond_pythons_recursion_limit_is_rejected():
    assert list(faults('{"a": ' + "[" * 5000 + "]" * 5000 + "}", max_depth=100_000)) == ["a"]


def test_brackets_within_texts_do_not_count_as_depth():
    assert faults(json.dumps({"a": "[" * 500})) == {}


def test_errors_are_reported_together_up_to_a_limit():
    assert set(faults(r'{"a": NaN, "b": "\u0000", "c": {"d": 1, "d": 2}}')) == {"a", "b", "c.d"}
    assert len(faults(json.dumps(["\0"] * 1000))) == MAX_ERRORS


def test_a_path_can_always_be_sent_back():
    long = join_path("args", "x" * 1000)

    assert join_path("args", "a.b") == 'args["a.b"]'
    assert join_path("", "a b") == '"a b"'
    assert join_path("args", "\ud800").encode() == b'args["\\ud800"]'
    assert len(long) < 80
