"""Conditional requests: an answer has a tag, and whoever sends it back is told only what has changed."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from flask import Response, request

_SIZE = 12  # bytes of a digest: enough for two answers never to share one
_KEEP = "private, no-cache"  # it may be kept, and must be asked about


@dataclass(frozen=True)
class Versioned:
    """An answer, and the version of what it is about, which `If-Match` may demand."""

    answer: Any
    version: str


def tagged(text: str, content_type: str, version: str | None = None) -> Response:
    """The answer with its tag; a 304 for a caller who has it already."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_SIZE).hexdigest()
    tag = digest if version is None else f"{version}.{digest}"
    if request.method == "GET" and request.if_none_match.contains_weak(tag):
        response = Response(status=304)
    else:
        response = Response(text, content_type=content_type)
    response.set_etag(tag)
    response.headers["Cache-Control"] = _KEEP
    return response


def tag_of(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_SIZE).hexdigest()


def demanded() -> str | None:
    """The version that must not have changed, as `If-Match` says; None: any will do.

    A tag that is none of ours is a version that there never was.
    """
    tags = request.if_match
    if not request.headers.get("If-Match") or tags.star_tag:
        return None
    known = list({tag.partition(".")[0] for tag in tags.as_set() if tag})  # an empty tag comes as None
    return known[0] if len(known) == 1 else ""
