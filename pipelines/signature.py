"""The parameters of a task's callable, and how it is called. Portable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dataloader.pipelines.retry import Fail

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


@dataclass(frozen=True)
class CallShape:
    """Which arguments a callable takes."""

    takes_args: bool = True  # a callable without parameters is called with nothing
    context_name: str | None = None  # of the parameter for the context, if there is one
    spread: bool = False  # args as keyword arguments rather than as one object


def shape_of(call: Callable[..., Any], spread: bool | None = None) -> CallShape:
    """Infer the shape from the parameters; `spread` None: infer that too."""
    positional = [p for p in parameters(call) if p.kind in POSITIONAL_KINDS]
    if spread is None:
        # Two required parameters, the second not the context: one `args` object is not enough.
        needed = [p for p in positional if p.default is p.empty]
        spread = len(needed) > 1 and not any(map(is_context, positional[1:2]))
    contexts = [p.name for p in (parameters(call) if spread else positional[1:2]) if is_context(p)]
    takes_args = bool(positional) or any(p.kind is p.VAR_POSITIONAL for p in parameters(call))
    return CallShape(takes_args, contexts[0] if contexts else None, spread)


def start_call(
    call: Callable[..., Any], shape: CallShape, args: Any, context: Any, argv: Sequence[str] | None = None
) -> Any:
    """Call it with its args, or as a `main()` with this command line. Raises `Fail` if it does not take them."""
    try:
        return _call(call, shape, args, context) if argv is None else _call_main(call, argv)
    except TypeError as error:
        invoked = error.__traceback__ and error.__traceback__.tb_next  # the frame of the function called above
        if invoked is not None and invoked.tb_next is not None:  # raised in the callable rather than by calling it
            raise
        raise Fail(f"the task's callable cannot be called like this: {error}") from error


def _call(call: Callable[..., Any], shape: CallShape, args: Any, context: Any) -> Any:
    if shape.spread:
        named: Mapping[str, Any] = {} if shape.context_name is None else {shape.context_name: context}
        return call(**{**args, **named})
    if shape.context_name is not None:
        return call(args, context)
    return call(args) if shape.takes_args else call()


def _call_main(call: Callable[..., Any], argv: Sequence[str]) -> Any:
    needs_list = any(p.default is p.empty and p.kind in POSITIONAL_KINDS for p in parameters(call))
    exit_code = call(*([list(argv)] if needs_list else []))
    if type(exit_code) is int:  # as in a console script
        raise SystemExit(exit_code)
    return exit_code
