from __future__ import annotations

import pytest

from dataloader.app.net import AllowedHosts, ForbiddenAddress, parse_url, resolve

NO_ONE = AllowedHosts()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://10.1.2.3/",
        "http://169.254.169.254/latest/meta-data", "http://192.168.0.1:8080/", "http://0.0.0.0/", "http://[::1]/",
        "http://[::ffff:10.0.0.1]/", "http://[64:ff9b::a00:1]/", "http://[2002:a00:1::]/", "http://[fe80::1]/",
        "http://224.0.0.1/", "http://localhost/", "http://a.localhost./", "http://100.64.0.1/", "http://[fd00::1]/",
        "http://[fec0::1]/", "http://[3fff::1]/", "http://192.0.0.8/", "http://[::ffff:192.0.0.8]/",
        "http://[2001:0:4136:e378:8000:63bf:f7f7:f7f7]/",
    ],
)  # fmt: skip
def test_what_is_not_public_is_refused_however_it_is_written(url):
    with pytest.raises(ForbiddenAddress, match="DL_WEBHOOK_ALLOWED_HOSTS"):
        parse_url(url, NO_ONE)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.com/", "no address"), ("example.com", "no address"), ("http:///x", "no address"),
        ("http://u:p@example.com/", "password"), ("http://example.com/#x", "fragment"),
        ("http://example.com:0/", "port 0"),
        ("http://example.com:99999/", "no URL"), ("http://[::1/", "no URL"), ("http://example.com/a b", "percent"),
        ("http://example.com/\r\nX: y", "percent"), ("http://example.com/" + "x" * 2000, "2000"),
    ],
)  # fmt: skip
def test_what_is_no_place_to_send_to_is_refused_with_the_reason(url, why):
    with pytest.raises(ForbiddenAddress, match=why):
        parse_url(url, NO_ONE)


def test_a_public_place_is_taken_apart():
    place = parse_url("https://Hooks.Example.com/a?b=c", NO_ONE)

    assert (place.scheme, place.host, place.port, place.request_target) == ("https", "hooks.example.com", 443, "/a?b=c")
    assert place.host_header == "hooks.example.com"
    assert parse_url("http://[2a00:1450::1]:8080", NO_ONE).host_header == "[2a00:1450::1]:8080"
    assert parse_url("http://93.184.216.34", NO_ONE).request_target == "/"


def test_hosts_and_networks_may_be_allowed():
    allowed = AllowedHosts.parse(["10.0.0.0/8", "hooks.internal", "::1"])

    assert parse_url("http://10.9.9.9/", allowed).host == "10.9.9.9"
    assert parse_url("http://[::1]/", allowed).host == "::1"
    assert parse_url("http://[::ffff:10.0.0.1]/", allowed).port == 80
    inside = parse_url("http://hooks.internal/", allowed)
    assert resolve(inside, allowed, lambda host, port: ["192.168.1.1"]) == ["192.168.1.1"]
    with pytest.raises(ForbiddenAddress):
        parse_url("http://192.168.1.1/", allowed)


@pytest.mark.parametrize("wrong", ["10.0.0.0/99", "http://x", "a/b", ""])
def test_rule_that_allows_nothing_is_reported(wrong):
    with pytest.raises(ValueError, match="neither"):
        AllowedHosts.parse([wrong])


def test_one_private_address_among_public_ones_spoils_the_name():
    place = parse_url("http://hooks.example.com/", NO_ONE)

    assert resolve(place, NO_ONE, lambda host, port: ["93.184.216.34"] * 2) == ["93.184.216.34"]
    with pytest.raises(ForbiddenAddress, match="10.0.0.1"):
        resolve(place, NO_ONE, lambda host, port: ["93.184.216.34", "10.0.0.1"])
    with pytest.raises(ForbiddenAddress, match="fe80::1"):
        resolve(place, NO_ONE, lambda host, port: ["fe80::1%eth0"])


def test_a_name_that_is_none_is_an_error_of_the_net():
    with pytest.raises(OSError):
        resolve(parse_url(f"http://{'a' * 70}.example.com/", NO_ONE), NO_ONE)
