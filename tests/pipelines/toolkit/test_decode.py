import gzip
import io
import json
from decimal import Decimal

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader.pipelines.toolkit.decode import csv_records, decimal, json_lines, numbered_json_lines, xml_root
from dataloader.pipelines.toolkit.errors import BadRecord, DecodeError, ExpandsTooMuch, TooManyRejects, TruncatedArchive
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.unpack import Bounds


def lines(text):
    return io.BytesIO(text.encode() if isinstance(text, str) else text)


records = st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-9, 9)))


@settings(max_examples=50)
@given(records, st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans())
def test_every_object_of_a_file_comes_out_once_and_in_order(records, end, last_end):
    text = end.join(json.dumps(record) for record in records) + (end if last_end else "")

    assert list(json_lines(lines(text))) == records


def test_a_large_file_is_read_across_all_its_pieces():
    records = [{"n": n, "text": "ё" * (n % 50)} for n in range(30_000)]
    packed = zstandard.compress("\n".join(json.dumps(r, ensure_ascii=False) for r in records).encode())

    assert list(json_lines(io.BytesIO(packed))) == records


def test_a_byte_order_mark_is_no_part_of_the_first_record():
    assert list(json_lines(lines(b'\xef\xbb\xbf{"a": 1}\n'))) == [{"a": 1}]
    assert list(json_lines(lines(b"\xef\xbb"), rejects=Rejects(1))) == []


BAD = {
    'no json"': "line 3: ",
    "[1, 2]": "a list where an object was expected: '[1, 2]'",
    '{"a": NaN}': "line 3: ",
    '{"a": 1}{"b": 2}': "line 3: ",
    "x" * 100: "xxx'…",
    "[" * 100_000: "line 3: ",
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("bad", "message"), BAD.items(), ids=[bad[:20] for bad in BAD])
def test_a_bad_record_is_named_by_its_line(bad, message, exact):
    text = f'{{"a": 1}}\n\n{bad}\n{{"a": 2}}'
    with pytest.raises(BadRecord) as raised:
        list(json_lines(lines(text), exact=exact))
    rejects = Rejects(limit=5)

    assert message in str(raised.value)
    assert raised.value.line == 3
    assert list(json_lines(lines(text), exact=exact, rejects=rejects)) == [{"a": 1}, {"a": 2}]
    assert (rejects.count, rejects.first[0].place) == (1, "line 3")


def test_text_that_is_not_utf_8_is_a_bad_record():
    with pytest.raises(BadRecord, match="line 2"):
        list(json_lines(lines(b'{"a": "\xd0\xb0"}\n{"a": "\xe0"}')))


def test_numbers_are_kept_exactly_where_that_is_asked_for():
    text = '{"a": 0.10, "b": 123456789012345678901234567890}'

    assert list(json_lines(lines(text), exact=True)) == [{"a": Decimal("0.10"), "b": 123456789012345678901234567890}]


def test_too_many_bad_records_end_the_reading():
    with pytest.raises(TooManyRejects, match="more than 2 bad records; the first are line 1"):
        list(json_lines(lines("bad\n" * 10), rejects=Rejects(limit=2)))


@pytest.mark.parametrize("at", ["start", "middle", "end"])
@pytest.mark.parametrize("size", [1_500, 300_000])
def test_a_line_past_its_bound_is_passed_over_and_named(at, size):
    good, long = ['{"a": 1}'] * 4, '{"a": "' + "x" * size + '"}'
    good.insert({"start": 0, "middle": 2, "end": 4}[at], long)
    rejects = Rejects(limit=1)

    records_read = list(json_lines(lines("\n".join(good)), bounds=Bounds(line_bytes=1_000), rejects=rejects))

    assert records_read == [{"a": 1}] * 4
    assert rejects.first[0].place == f"line { {'start': 1, 'middle': 3, 'end': 5}[at] }"
    assert "longer than the 1000 bytes" in rejects.first[0].reason


def test_a_truncated_archive_gives_what_it_held_and_then_says_so():
    packed = gzip.compress(b'{"a": 1}\n' * 20_000)
    records_read = []

    with pytest.raises(TruncatedArchive):
        for record in json_lines(io.BytesIO(packed[:-20])):
            records_read.append(record)

    assert records_read[0] == {"a": 1}


class TestCsv:
    def test_rows_come_by_the_names_of_the_first_line(self):
        text = 'id;"na;me"\n1;"two\nlines"\n\n2;"q""uote"\r\n'

        assert list(csv_records(lines(text), delimiter=";")) == [
            {"id": "1", "na;me": "two\nlines"},
            {"id": "2", "na;me": 'q"uote'},
        ]

    def test_a_file_without_a_header_is_given_its_names(self):
        assert list(csv_records(lines("1,2\n"), columns=["a", "b"])) == [{"a": "1", "b": "2"}]
        assert list(csv_records(lines(""))) == []

    def test_russian_files_are_read_in_their_encoding(self):
        data = "код;имя\n1;Ёлка\n".encode("cp1251")

        assert list(csv_records(lines(data), encoding="cp1251", delimiter=";")) == [{"код": "1", "имя": "Ёлка"}]

    def test_bad_rows_are_named_and_the_others_read(self):
        rejects = Rejects(limit=10)
        data = b'a,b\n1,2\n3\n4,5,6\n7,"x"y\n8,\xff\n"9\n\xff",0\n10,11\n'

        records_read = list(csv_records(lines(data), rejects=rejects))

        assert records_read == [{"a": "1", "b": "2"}, {"a": "10", "b": "11"}]
        assert [bad.place for bad in rejects.first] == ["line 3", "line 4", "line 5", "line 6", "line 8"]
        assert rejects.first[0].reason == "1 fields where 2 were expected"
        assert rejects.first[3].reason == "not in utf-8"

    def test_a_quote_never_closed_is_a_bad_row(self):
        with pytest.raises(BadRecord, match="line 2"):
            list(csv_records(lines('a\n"1\n2\n')))

    def test_a_field_without_end_is_a_bad_row(self):
        with pytest.raises(BadRecord, match="field larger than"):
            list(csv_records(lines("a\n" + "x" * 200_000)))

    @pytest.mark.parametrize("header", [b"a,a", b"a,", b"\xff", b'"a"b'])
    def test_a_header_that_does_not_name_the_columns_is_refused(self, header):
        with pytest.raises(DecodeError, match="first line"):
            list(csv_records(lines(header + b"\n1,2\n")))

    def test_an_encoding_without_plain_line_ends_is_refused(self):
        with pytest.raises(DecodeError, match="utf-16 cannot be read line by line"):
            list(csv_records(lines("a"), encoding="utf-16"))


RATES = """<?xml version="1.0" encoding="windows-1251"?>
<ValCurs Date="31.01.2024" name="Foreign Currency Market">
<Valute ID="R01235"><NumCode>840</NumCode><CharCode>USD</CharCode><Nominal>1</Nominal>
<Name>Доллар США</Name><Value>89,5831</Value></Valute></ValCurs>""".encode("cp1251")


class TestXml:
    def test_a_windows_1251_document_is_read_as_it_declares_itself(self, tmp_path):
        path = tmp_path / "rates.xml"
        path.write_bytes(RATES)
        for source in (RATES, path, io.BytesIO(RATES)):
            rate = xml_root(source).find("Valute")

            assert rate is not None
            assert rate.findtext("Name") == "Доллар США"
            assert decimal(rate.findtext("Value") or "") == Decimal("89.5831")

    @pytest.mark.parametrize(
        "document",
        [
            b'<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>',
            b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
            b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
        ],
    )
    def test_bombs_and_references_to_files_are_refused(self, document):
        with pytest.raises(DecodeError, match="not safe to read"):
            xml_root(document)

    @pytest.mark.parametrize(
        "document",
        [b"", b"<a><b></a>", b"<html>\xff", RATES[:100], b'<?xml version="1.0" encoding="klingon"?><a/>'],
    )
    def test_what_is_no_document_is_named(self, document):
        with pytest.raises(DecodeError, match="no XML document"):
            xml_root(document)

    def test_a_document_past_its_bound_is_refused(self):
        for source in (RATES, io.BytesIO(RATES)):
            with pytest.raises(ExpandsTooMuch, match="more than the 100 bytes"):
                xml_root(source, max_bytes=100)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("89,5831", "89.5831"),
        (" 1 234 567,89 ", "1234567.89"),
        ("1\u00a0234.5", "1234.5"),
        ("-0,10", "-0.10"),
        ("+7", "7"),
    ],
)
def test_numbers_are_read_as_people_write_them(text, number):
    assert str(decimal(text)) == number


@pytest.mark.parametrize("text", ["", "1,234.5", "1.234,5", "12 34", "1e5", "NaN", "-", "1,", "1 2345"])
def test_a_number_that_could_mean_two_things_is_no_number(text):
    with pytest.raises(DecodeError, match="is no number"):
        decimal(text)


def test_each_object_can_be_had_with_the_number_of_its_line():
    rejects = Rejects(limit=5)

    records_read = list(numbered_json_lines(lines(b'{"a": 1}\n\n{"a": 3}\nbroken\n{"a": 5}\n'), rejects=rejects))

    assert records_read == [(1, {"a": 1}), (3, {"a": 3}), (5, {"a": 5})]
    assert rejects.first[0].place == "line 4"
    assert list(numbered_json_lines(lines(b'{"a": 1}\n{"a": 2}'))) == [(1, {"a": 1}), (2, {"a": 2})]
