"""Conditional requests: ETags of responses, `If-None-Match` and `If-Match`."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from flask import Response, request

_DIGEST_BYTES = 12
_CACHE_CONTROL = "private, no-cache"  # clients may store the response and must revalidate it


@dataclass(frozen=True)
class VersionedResponse:
    """A response with the version of its resource, which `If-Match` may require."""

    content: Any
    version: str


def with_etag(text: str, content_type: str, version: str | None = None) -> Response:
    """Return the response with its ETag, or a 304 if the caller has it already."""
    tag = etag_of(text) if version is None else f"{version}.{etag_of(text)}"
    if request.method == "GET" and request.if_none_match.contains_weak(tag):
        response = Response(status=304)
    else:
        response = Response(text, content_type=content_type)
    response.set_etag(tag)
    response.headers["Cache-Control"] = _CACHE_CONTROL
    return response


def etag_of(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def if_match_version() -> str | None:
    """Return the version that `If-Match` requires, or None if any version will do; "" for a tag of no version."""
    tags = request.if_match
    if not request.headers.get("If-Match") or tags.star_tag:
        return None
    versions = list({tag.partition(".")[0] for tag in tags.as_set() if tag})  # werkzeug yields None for an empty tag
    return versions[0] if len(versions) == 1 else ""
