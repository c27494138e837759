"""The loops of `ctx.each`: which keys are done is the checkpoint of the job. Portable."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from datetime import date, time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from dataloader.pipelines.retry import Fail

if TYPE_CHECKING:
    from dataloader.pipelines.reported_state import ReportedState

K = TypeVar("K")
_FIELD = "each"
_UNIT = "keys"
_MAX_SHOWN = 200  # characters of a key


class LoopContext(Protocol):
    """What loops need of the context."""

    reported: ReportedState

    @property
    def resume(self) -> Any: ...

    def check(self) -> None: ...

    def save_position(self, cursor: Any) -> None: ...

    def record_progress(self, fields: Mapping[str, Any]) -> None: ...


class LoopState(NamedTuple):
    """How far a loop is."""

    done: int  # keys
    last: str  # of them
    digest: str  # of all of them

    @classmethod
    def parse(cls, value: Any) -> LoopState:
        return cls(int(value["done"]), str(value["last"]), str(value["digest"]))


_NOTHING_DONE = LoopState(0, "", "")


class _OpenKey:
    """The key whose block runs."""

    is_committed = False  # with the rows of a transaction

    def __init__(self, text: str, states: list[LoopState]) -> None:
        self.text, self.states = text, states  # once it is done
        self.checkpoint = _checkpoint(states)


class KeyLoops:
    """The loops of one attempt, in the order of their start. Used by the pipeline's thread."""

    def __init__(self) -> None:
        self._states: list[LoopState] | None = None  # None: there was no loop
        self._started = 0
        self._open: _OpenKey | None = None
        self._is_in_loop = False

    def run(self, context: LoopContext, keys: Iterable[K]) -> Iterator[K]:
        """Yield the keys that are not done. One is done when its block has ended, or with the transaction in it."""
        if self._is_in_loop:
            raise RuntimeError("loops of ctx.each do not nest: make one list of keys, such as of itertools.product")
        states = self._states = _parse_checkpoint(context.resume) if self._states is None else self._states
        number, self._started = self._started, self._started + 1
        states = [*states, *[_NOTHING_DONE] * (number - len(states))]  # of loops before that had no keys
        self._is_in_loop = True
        try:
            iterator, digest = iter(keys), _new_digest()
            done = 0
            if number < len(states) and states[number].done:
                done = states[number].done
                _skip(iterator, states[number], digest)
            total = len(keys) if isinstance(keys, Sized) else None
            if total is not None and done:
                _report_progress(context, done, total)
            for key in iterator:
                text = _encode_key(key)
                digest.update(text.encode())
                done += 1
                state = LoopState(done, _shown(text), digest.hexdigest())
                states = [*states[:number], state, *states[number + 1 :]]
                context.check()
                self._open = opened = _OpenKey(text, states)
                try:
                    yield key
                finally:
                    self._open = None
                if not opened.is_committed:
                    context.save_position(opened.checkpoint)
                self._states = states
                if total is not None:
                    _report_progress(context, done, total)
            context.check()
        finally:
            self._is_in_loop = False

    def refuse_checkpoint(self) -> None:
        if self._states is not None:
            raise RuntimeError("ctx.each keeps the checkpoint of this job, so it has no other one")

    def begin_transaction(self, context: LoopContext, *, is_home: bool) -> None:
        """Called when a transaction is to begin."""
        if self._open is None:
            return
        if not is_home:
            raise RuntimeError(
                "ctx.each keeps its checkpoint where the task has its own, to commit it with the rows of the block:"
                " name this target in @register(target=…)"
            )
        opened = self._open
        if opened.is_committed:
            # The key counts as done, and a later attempt would not write what the block writes now.
            problem = (
                f"the block of key {_shown(opened.text)} in ctx.each has opened a second transaction, and the first has"
                " committed the key as done: one transaction has all that the block writes"
            )
            self._open = None
            context.save_position({**opened.checkpoint, "problem": problem})
            raise Fail(problem)

    def before_commit(self, context: LoopContext) -> None:
        if self._open is not None:
            context.save_position(self._open.checkpoint)

    def committed(self) -> None:
        if self._open is not None:
            self._open.is_committed = True
            self._states = self._open.states


def _new_digest() -> Any:
    import hashlib  # noqa: PLC0415 - it loads a large library, and few tasks loop

    return hashlib.sha256()


def _checkpoint(states: list[LoopState]) -> dict[str, Any]:
    return {_FIELD: [state._asdict() for state in states]}


def _parse_checkpoint(checkpoint: Any) -> list[LoopState]:
    if checkpoint is None:
        return []
    try:
        states = [LoopState.parse(state) for state in checkpoint[_FIELD]]
    except (TypeError, KeyError, ValueError):
        raise Fail(
            "ctx.each keeps its own checkpoint, and the job has another one, of an earlier attempt or of ctx.checkpoint"
        ) from None
    if "problem" in checkpoint:
        raise Fail(str(checkpoint["problem"]))
    return states


def _skip(iterator: Iterator[Any], state: LoopState, digest: Any) -> None:
    """Pass the keys that are done. Raises Fail if they are others than before."""
    text = ""
    for count in range(state.done):
        try:
            text = _encode_key(next(iterator))
        except StopIteration:
            raise Fail(
                f"the keys of ctx.each have changed since the last attempt: {state.done} were done, the last of them"
                f" {state.last}, and now there are only {count}"
            ) from None
        digest.update(text.encode())
    if digest.hexdigest() != state.digest:
        now = _shown(text)
        what = (
            f"key {state.done} was {state.last} and is {now} now" if now != state.last else "an earlier one is another"
        )
        raise Fail(
            f"the keys of ctx.each have changed since the last attempt: of the {state.done} that were done {what}"
        )


def _report_progress(context: LoopContext, done: int, total: int) -> None:
    """Unless the task reports its own."""
    progress = context.reported.progress or {}
    if "processed" not in progress or progress.get("unit") == _UNIT:
        context.record_progress({"processed": done, "total": total, "unit": _UNIT})


def _encode_key(key: Any) -> str:
    """A text that is the same for equal keys in any process. It ends in a character that it does not have elsewhere."""
    return json.dumps(_plain(key), ensure_ascii=False, sort_keys=True) + "\n"


def _shown(text: str) -> str:
    return text.rstrip("\n")[:_MAX_SHOWN]


def _plain(key: Any) -> Any:
    if key is None or isinstance(key, (bool, int, float, str)):
        return key
    if isinstance(key, (date, time)):
        return key.isoformat()
    if isinstance(key, UUID):
        return str(key)
    if isinstance(key, (tuple, list)):
        return [_plain(item) for item in key]
    if isinstance(key, dict):
        return {str(name): _plain(item) for name, item in key.items()}
    if hasattr(key, "__float__") and hasattr(key, "__round__"):  # a number of another kind
        return str(key)
    raise TypeError(
        f"a key of ctx.each is a text, number, date or UUID, or a list of these, not a {type(key).__name__}"
    )
