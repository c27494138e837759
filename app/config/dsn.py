"""libpq connection strings: read, written, and shown without their secrets.

Written without psycopg2, so that the settings can be read where no driver is installed. What libpq would refuse is
refused here: libpq's own message repeats the connection string, password and all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

MASK = "***"

# Shown as they are. Anything else may be a secret, or a misspelt `password`.
# fmt: off
_UNMASKED_KEYWORDS = frozenset({
    "host", "hostaddr", "port", "dbname", "user", "service", "sslmode", "application_name", "connect_timeout",
    "target_session_attrs", "options", "keepalives", "keepalives_idle", "keepalives_interval",
    "keepalives_count", "tcp_user_timeout", "client_encoding", "sslcert", "sslkey", "sslrootcert",
    "gssencmode", "channel_binding", "load_balance_hosts", "require_auth",
})
_KEYWORDS = _UNMASKED_KEYWORDS | {
    "password", "passfile", "fallback_application_name", "replication", "sslnegotiation", "sslcompression",
    "sslcertmode", "sslpassword", "sslcrl", "sslcrldir", "sslsni", "requirepeer", "ssl_min_protocol_version",
    "ssl_max_protocol_version", "min_protocol_version", "max_protocol_version", "krbsrvname", "gsslib",
    "gssdelegation", "servicefile", "sslkeylogfile", "scram_client_key", "scram_server_key", "oauth_issuer",
    "oauth_client_id", "oauth_client_secret", "oauth_scope",
}
# fmt: on
_SCHEMES = ("postgresql://", "postgres://")
# Blanks are those of C: others belong to a value.
_PAIR = re.compile(
    r"([a-z_]+)\s*=\s*(?:'((?:\\.|[^'\\])*)'|(?!')((?:\\.|[^\s\\])*\\?))(?:\s+|\Z)", re.DOTALL | re.ASCII
)
_URI = re.compile(r"postgres(?:ql)?://(?:([^@/]*)@)?([^/?]*)(?:/([^?]*))?(?:\?(.*))?", re.DOTALL)
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[]*))(?::(.*))?", re.DOTALL)
_MAX_PORT = 65_535


def parse_dsn(dsn: str) -> dict[str, str]:
    """The parameters of a URI or of `keyword=value` pairs.

    Raises ValueError, whose text never repeats the connection string: it may hold a password.
    """
    parameters = _parse_any_form(dsn)
    # Not named: of a password with a blank in it, the second half looks like a keyword.
    if not parameters.keys() <= _KEYWORDS:
        raise ValueError("it has a keyword that libpq does not know; write a value with blanks in it within ' and '")
    return {keyword: value for keyword, value in parameters.items() if value}


def format_dsn(parameters: Mapping[str, str]) -> str:
    """The parameters as `keyword=value` pairs, quoted the way libpq reads them."""
    return " ".join(f"{keyword}={_quote(value)}" for keyword, value in parameters.items())


def mask_dsn(dsn: str) -> str:
    """The connection string for people. One that cannot be read is not shown at all."""
    try:
        parameters = _parse_any_form(dsn)
    except ValueError:
        return MASK
    return format_dsn(
        {keyword: value if keyword in _UNMASKED_KEYWORDS else MASK for keyword, value in parameters.items() if value}
    )


def _parse_any_form(dsn: str) -> dict[str, str]:
    _require_text(dsn)
    if dsn.startswith(_SCHEMES):
        parameters = _parse_uri(dsn)
    elif "://" in dsn and "=" not in dsn.partition("://")[0]:
        raise ValueError("it starts neither with postgresql:// nor with postgres://")
    else:
        parameters = _parse_pairs(dsn)
    _require_ports(parameters.get("port", ""))
    return parameters


def _require_text(text: str) -> None:
    # A variable of the environment may hold any bytes; the driver's message about those shows where they stand.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8") from None
    if "\x00" in text:
        raise ValueError("it has a zero byte in it, which no connection string may have")


def _require_ports(ports: str) -> None:
    for port in ports.split(","):
        if port and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= _MAX_PORT):
            raise ValueError("a port in it is no number from 1 to 65535; write @ : / in a password as %40 %3A %2F")


def _parse_uri(dsn: str) -> dict[str, str]:
    match = _URI.fullmatch(dsn)
    assert match is not None  # noqa: S101 - the caller has seen the scheme, and the rest may be anything
    credentials, hosts, dbname, query = match.groups()
    # libpq ends the password at the first @ and the host at the first /: the rest would be shown as host or database.
    if "@" in hosts or (dbname and "@" in dbname):
        raise ValueError("it has more than one @, or an @ after a /; write @ : / in a password as %40 %3A %2F")
    parameters: dict[str, str] = {}
    if credentials:
        user, _, password = credentials.partition(":")
        parameters |= {"user": _percent_decode(user), "password": _percent_decode(password)}
    parameters |= _parse_hosts(hosts)
    parameters["dbname"] = _percent_decode(dbname or "")
    return parameters | (_parse_query(query) if query else {})


def _percent_decode(text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise ValueError("a % in it is not followed by two hexadecimal digits; write % as %25")
    if "%00" in text:
        raise ValueError("%00 in it is a zero byte, which no connection string may have; write % as %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("the bytes that it writes with % are not UTF-8; write % as %25") from None


def _parse_query(query: str) -> dict[str, str]:
    # Unlike in a web form, a plus is a plus; and an = within a value must be encoded.
    pairs = [pair.split("=") for pair in query.removesuffix("&").split("&")]
    if not all(len(pair) == 2 for pair in pairs):  # noqa: PLR2004 - a keyword and a value
        raise ValueError(
            "what follows its ? cannot be read as keyword=value pairs joined by &; write = & in a value as %3D %26"
        )
    parameters = {_percent_decode(keyword): _percent_decode(value) for keyword, value in pairs}
    if parameters.get("ssl") == "true":  # as JDBC has it
        del parameters["ssl"]
        parameters["sslmode"] = "require"
    return parameters


def _parse_hosts(hosts: str) -> dict[str, str]:
    names, ports = [], []
    for host in hosts.split(","):
        match = _HOST.fullmatch(host)
        if match is None:
            raise ValueError("an address in its [ ] is empty or not closed; write [ ] in a password as %5B %5D")
        names.append(_percent_decode(match[1] or match[2] or ""))
        ports.append(_percent_decode(match[3] or ""))
    return {"host": ",".join(names), "port": ",".join(ports)}


def _parse_pairs(dsn: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    text = dsn.lstrip(" \t\n\r\f\v")
    at = 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError(
                f"it cannot be read as keyword=value pairs from character {at + 1 + len(dsn) - len(text)} on"
            )
        keyword, quoted, bare = match.groups()
        # A backslash at the very end escapes nothing, and is dropped.
        parameters[keyword] = re.sub(r"\\(.|\Z)", r"\1", quoted if quoted is not None else bare, flags=re.DOTALL)
        at = match.end()
    return parameters


def _quote(value: str) -> str:
    if value and re.fullmatch(r"[^\s'\\]+", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
