"""A job's args as a value of a model, with all their faults told at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

M = TypeVar("M", bound="Arguments")


class BadArguments(ValueError):
    """Args that a pipeline cannot work with."""

    permanent = True  # the same try again would end the same way


class Arguments(BaseModel):
    """What a pipeline takes. A name it does not know is a fault: it would otherwise be silently left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, hide_input_in_errors=True)

    @classmethod
    def read(cls: type[M], args: Mapping[str, Any]) -> M:
        """Raises `BadArguments`, whose text does not repeat what was given: it may be a whole document."""
        try:
            # As JSON, or "2024-01-31" would be no date for a strict model.
            return cls.model_validate_json(json.dumps(args), strict=True)
        except ValidationError as error:
            faults = error.errors(include_input=False, include_url=False, include_context=False)
            told = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'args'}: {fault['msg']}" for fault in faults)
            raise BadArguments(f"{told}; this task takes {', '.join(cls.model_fields)}") from error
