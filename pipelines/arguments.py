"""Base of the args of shipped pipelines."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Arguments(BaseModel):
    """Args in which an unknown name is an error; it would be ignored silently otherwise."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, str_strip_whitespace=True, hide_input_in_errors=True
    )
