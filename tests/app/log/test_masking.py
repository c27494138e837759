"""What must not be seen in a log is not seen, and the rest is."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader.app.log import LogOptions, mask, mask_secret_fields, masking, register_secret, set_up, tear_down
from dataloader.app.log.masking import Masker, unmask

SECRET = "hunter2/ü\\x"


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PG_PASSWORD", "passwd", "user_pass", "pwd", "passphrase", "secret", "client_secret_id"),
        *("token", "access_token", "accessToken", "api_key", "X-Api-Key", "apikey", "private_key", "secretKey"),
        *("Authorization", "proxy-authorization", "auth", "Cookie", "Set-Cookie", "credentials", "dsn", "DL_DB_DSN"),
    ],
)
def test_a_secret_is_known_by_its_name(name):
    assert mask({"args": [{name: "x", "kept": "y"}]}) == {"args": [{name: "***", "kept": "y"}]}


@pytest.mark.parametrize(
    "name",
    ["lock_key", "idempotency_key", "partition_key", "key", "prompt_tokens", "max_tokens", "author", "compass", "path"],
)
def test_other_names_are_no_secrets(name):
    assert mask({name: "x"}) == {name: "x"}


def test_presence_of_secret_is_shown():
    assert mask({"password": None, "token": True, "secret": 7}) == {"password": None, "token": True, "secret": "***"}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://etl:hunter2@db:5432/jobs", "postgresql://etl:***@db:5432/jobs"),
        ("postgresql://etl:hun@ter/2@db/jobs failed", "postgresql://etl:***@db/jobs failed"),
        ("https://:hunter2@host/", "https://:***@host/"),
        ("postgresql://etl:12345@db/jobs", "postgresql://etl:***@db/jobs"),
        ("host=db password=hunter2 user=etl", "host=db password=*** user=etl"),
        ("host=db password = 'hunter2 \\' hunter2' user=etl", "host=db password = *** user=etl"),
        ("password='hunter2 never closed", "password=*** never closed"),
        (r"password=hunter2\ hunter2 user=etl", "password=*** user=etl"),
        ("password=a&hunter2", "password=***"),
        ("password=b'hunter2' user=etl", "password=*** user=etl"),
        ('{"password": "hunter2 hunter2", "kept": 1}', '{"password": ***, "kept": 1}'),
        ("{'client_secret': 'hunter2', 'kept': 1}", "{'client_secret': ***, 'kept': 1}"),
        (r"{\"api_key\": \"hunter2\"}", r"{\"api_key\": ***"),
        ("GET /x?token=hunter2&page=2", "GET /x?token=***&page=2"),
        ("Authorization: Bearer hunter2", "Authorization: ***"),
        ("authorization='Basic aHVudGVyMg=='", "authorization='***'"),
        ("sent Bearer hunter2.x.y there", "sent Bearer *** there"),
        ("Set-Cookie: session=hunter2; path=/\nHost: x", "Set-Cookie: ***\nHost: x"),
    ],
)
def test_a_secret_is_known_by_its_shape(text, masked):
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8081/mail?to=a@b",
        "http://host:8081",
        "postgresql://etl@db/jobs",
        "5 tokens: fine",
        "lock_key=customer:1",
        "etl.default: 3 jobs at 12:30",
    ],
)
def test_other_texts_are_let_be(text):
    assert mask(text) == text


@pytest.mark.parametrize(
    "text",
    [
        f"said {SECRET} aloud",
        "GET /hunter2%2F%C3%BC%5Cx",
        f"failed with {SECRET!r}",
    ],
)
def test_a_secret_is_known_by_its_value_however_it_is_spelt(text):
    assert "hunter2" not in Masker([SECRET]).mask_text(text)
    assert "***" in Masker([SECRET]).mask_text(text)


def test_a_secret_within_a_secret_leaves_no_rest():
    assert Masker(["abcd", "abcdefgh"]).mask_text("abcdefgh") == "***"


def test_a_secret_too_short_to_be_one_does_not_hide_everything():
    assert Masker(["", "etl"]).mask_text("etl.default") == "etl.default"


def test_mask_knows_the_values_named_to_set_up():
    assert mask(f"x {SECRET}") == f"x {SECRET}"

    set_up(LogOptions(secrets=(SECRET,)))
    try:
        assert mask([f"x {SECRET}", {SECRET: 1}]) == ["x ***", {"***": 1}]
    finally:
        tear_down()
    assert SECRET not in repr(LogOptions(secrets=(SECRET,)))


def test_any_value_becomes_plain_data():
    job = UUID(int=1)
    value = {
        "job": job,
        1: (1, 2.5, {3}),
        "at": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        "on": date(2026, 1, 2),
        "error": ValueError("password=hunter2"),
        "nan": math.nan,
        "huge": 10**30,
        "endless": 10**6000,
        "bytes": b"ab",
        "bad": Unspeakable(),
        "lone": "\ud800",
    }

    assert mask(value) == {
        "job": str(job),
        "1": [1, 2.5, [3]],
        "at": "2026-01-02T03:04:00+00:00",
        "on": "2026-01-02",
        "error": "ValueError: password=***",
        "nan": "nan",
        "huge": str(10**30),
        "endless": "<int that cannot be shown>",
        "bytes": "b'ab'",
        "bad": "<Unspeakable that cannot be shown>",
        "lone": "\\ud800",
    }


def test_what_contains_itself_ends():
    loop: dict[str, Any] = {"a": 1}
    loop["self"] = [loop, loop]
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]

    assert mask(loop) == {"a": 1, "self": ["…", "…"]}
    assert "…" in str(mask(deep))


@given(st.text(alphabet="abc:/@=&'\"\\ \npassword", max_size=300))
def test_masking_ends_and_leaves_no_marked_secret(noise):
    assert "hunter2" not in str(mask(f"{noise} password=hunter2"))


@pytest.mark.parametrize("piece", ["://a:b", "password=", "password='", "a-", "cookie", "authorization: ", "\\"])
def test_a_hostile_text_costs_little(piece):
    # Seconds at worst where a careless pattern would take hours.
    assert mask(piece * (100_000 // len(piece)))


@given(st.text(alphabet="abc:/@=&'\"\\ \npasswordTOKENKEYcookieſK", max_size=60))
def test_a_text_that_is_spared_the_search_has_nothing_to_hide(text):
    """A line with a letter beyond ASCII is always searched."""
    assert Masker().mask_text(f"é\n{text}") == f"é\n{Masker().mask_text(text)}"


def test_only_values_of_secret_names_are_masked():
    result = {
        "password": "x",
        "a": [{"apiKey": 7, "n": 1}],
        "token": None,
        "secret": {"$secret": "bank"},
        "note": "password=x",
    }

    assert mask_secret_fields(result) == {
        "password": "***", "a": [{"apiKey": "***", "n": 1}], "token": None, "secret": {"$secret": "bank"},
        "note": "password=x",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:s3cret@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("postgresql://u:p@ss:w@h/db", "postgresql://u:***@h/db"),
        ("redis://:pw@h", "redis://:***@h"),
        (
            "postgresql://h/db?user=u&password=pw&sslmode=require",
            "postgresql://h/db?user=u&password=***&sslmode=require",
        ),
        ("host=h password='a b' user=u", "host=h password=*** user=u"),
        ("Server=h;Uid=u;Password=pw;Timeout=5", "Server=h;Uid=u;Password=***;Timeout=5"),
        ("host=h password  =  pw user=u", "host=h password  =  *** user=u"),
        ("Server=h;Uid=u;PWD={p;w}};x};Timeout=5", "Server=h;Uid=u;PWD=***;Timeout=5"),
        ('host=h;password="a b";user=u', "host=h;password=***;user=u"),
        (f"postgresql://u:{'token' * 300}@h/db", "postgresql://u:***@h/db"),
        ("http://h:8080/a@b", "http://h:8080/a@b"),
        ("from a://u:p@h to b://v:q@h", "from a://u:***@h to b://v:***@h"),
    ],
)
def test_password_of_an_address_is_masked_under_any_name(address, shown):
    args = {"source": address, "nested": [{"to": address}], "rows": 3}

    masked = mask_secret_fields(args)

    assert masked == {"source": shown, "nested": [{"to": shown}], "rows": 3}
    assert unmask(masked, args) == args


def test_changed_address_keeps_what_was_entered():
    original = {"source": "postgresql://u:s3cret@h/db"}

    assert unmask({"source": "postgresql://u:new@h/db"}, original) == {"source": "postgresql://u:new@h/db"}
    assert unmask({"source": "postgresql://u:***@evil/db"}, original) == {"source": "postgresql://u:***@evil/db"}


def test_masked_items_of_a_list_are_found_after_a_change():
    one, two = "postgresql://u:first@a/db", "postgresql://u:second@b/db"
    shown_one, shown_two = mask_secret_fields([one, two])

    assert unmask([shown_two], [one, two]) == [two]
    assert unmask([shown_two, shown_one], [one, two]) == [two, one]
    assert unmask([shown_one, "new", shown_two], [one, two]) == [one, "new", two]
    assert unmask([{"password": "***", "day": 2}], [{"password": "pw", "day": 1}]) == [{"password": "pw", "day": 2}]
    same = [{"password": "a"}, {"password": "b"}]  # which of them is removed cannot be known
    assert unmask([{"password": "***"}, {"password": "***"}], same) == same


def test_a_company_has_secrets_of_its_own():
    assert Masker(names=["iban"]).mask_secret_fields({"customerIBAN": "DE00", "x": 1}) == {
        "customerIBAN": "***",
        "x": 1,
    }
    assert Masker(names=["iban"]).mask_fields({"iban": "DE00"}) == {"iban": "***"}


def test_args_as_deep_as_they_may_be_are_no_trouble():
    deep: object = "x"
    for _ in range(300):
        deep = [deep]

    assert mask_secret_fields(deep) == deep


def test_our_own_keys_are_known_by_their_shape():
    assert Masker().mask_text("got dlk_3f9a1c22b7d0_" + "ab" * 24) == "got dlk_3f9a1c22b7d0_***"


def test_registered_secrets_are_masked_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(masking, "_SECRETS", masking._SecretRegistry())
    monkeypatch.setattr(masking, "_MAX_RETAINED_SECRETS", 2)
    masker = Masker(["known-secret"])
    assert masker.mask_text("a hidden-one") == "a hidden-one"

    register_secret(["hidden-one", "abc"])
    assert masker.mask_text("a hidden-one, abc, known-secret") == "a ***, abc, ***"
    register_secret(["hidden-two", "hidden-one", "hidden-three"])
    assert masker.mask_text("hidden-one hidden-two hidden-three") == "*** hidden-two ***", "the latest are kept"
    register_secret(["hidden-one"])
    register_secret(["hidden-four"])
    assert masker.mask_text("hidden-one hidden-three") == "*** hidden-three", "a value named again is the latest"


class Run:
    """Something that a secret is hidden for."""


def test_held_secret_is_never_dropped(monkeypatch):
    monkeypatch.setattr(masking, "_SECRETS", masking._SecretRegistry())
    monkeypatch.setattr(masking, "_MAX_RETAINED_SECRETS", 2)
    masker, long_run, another = Masker(), Run(), Run()

    register_secret(["of-the-long-run", "of-both"], long_run)
    register_secret(["of-both"], another)
    for n in range(5):
        register_secret([f"short-{n}"], Run())
    assert masker.mask_text("of-the-long-run of-both short-0 short-4") == "*** *** short-0 ***"

    del another
    register_secret(["x-more", "y-more"])
    assert masker.mask_text("of-the-long-run of-both") == "*** ***"

    del long_run
    register_secret(["z-more"])
    register_secret(["last-one", "very-last"])
    assert masker.mask_text("of-the-long-run of-both very-last") == "of-the-long-run of-both ***"


def test_field_name_is_masked_once_it_is_a_secret():
    masker = Masker()
    assert masker.mask_fields({"seen as a name": 1}) == {"seen as a name": 1}

    register_secret(["seen as a name"])

    assert masker.mask_fields({"seen as a name": 1}) == {"***": 1}


def test_secret_that_is_a_word_of_ours_is_masked_only_as_a_secret():
    masker = Masker(["dataloader", "hunter2-long"])

    assert masker.mask_text("/opt/dataloader/bin/dataloader: hunter2-long") == "/opt/dataloader/bin/dataloader: ***"
    assert masker.mask_text("postgresql://etl:dataloader@db/jobs") == "postgresql://etl:***@db/jobs"
    assert masker.mask_value({"password": "dataloader", "name": "dataloader"}) == {
        "password": "***", "name": "dataloader",
    }  # fmt: skip
