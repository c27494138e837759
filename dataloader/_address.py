"""Where a service answers, and the key that it asks for. Loads no HTTP library."""

from __future__ import annotations

from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8081"
RETRY_TIMEOUT_SEC = 6.0  # covers one Retry-After of a service whose database does not answer


def parse_url(url: str) -> str:
    """Return the address of a service without trailing slashes. Raises ValueError if it is not one."""
    try:
        address = urlsplit(url)
        _ = address.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not an address of a service: {error}") from error
    if address.username is not None or address.password is not None:
        raise ValueError("an address of a service has no user name or password in it")
    if address.scheme not in ("http", "https") or not address.hostname or address.query or address.fragment:
        raise ValueError(f"{url!r} is not an address of a service; one looks like {DEFAULT_URL}")
    if not all("!" <= character <= "~" for character in url):
        raise ValueError(f"{url!r} has characters that do not belong in an address")
    return url.rstrip("/")


def parse_api_key(raw: str) -> str:
    """Return an API key without surrounding space. Raises ValueError, which does not repeat it, if it is not one."""
    key = raw.strip()
    if not key or not all("!" <= character <= "~" for character in key):
        raise ValueError("the API key is empty, or has characters that no key has; one looks like dlk_…_…")
    return key
