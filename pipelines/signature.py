"""The parameters of a task's callable."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature takes the args
        return [
            inspect.Parameter("args", POSITIONAL_KINDS[0]),
            inspect.Parameter("more", inspect.Parameter.VAR_KEYWORD),
        ]


def is_context(parameter: inspect.Parameter) -> bool:
    return parameter.name in ("ctx", "context") or _annotation_name(parameter) == "Context"


def is_annotated_with(parameter: inspect.Parameter, kind: type) -> bool:
    return parameter.annotation is kind or _annotation_name(parameter) == kind.__name__


def _annotation_name(parameter: inspect.Parameter) -> str:
    """The last name of the annotation. A text is not evaluated: its names may not be importable."""
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return str(named).strip("'\"").rsplit(".", 1)[-1]
