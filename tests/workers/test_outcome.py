from __future__ import annotations

from pipelines.contract import Stop, StopReason
from workers.outcome import caused_by_stop


def raised(*errors: BaseException) -> BaseException:
    """The last of errors each of which was raised while the one before was handled."""
    try:
        if len(errors) > 1:
            try:
                raise raised(*errors[:-1])
            except BaseException:
                raise errors[-1]  # noqa: B904 - as a careless pipeline does it
        raise errors[0]
    except BaseException as error:
        return error


def test_error_in_cleanup_is_caused_by_the_stop():
    stop = Stop(StopReason.CANCEL)

    assert caused_by_stop(raised(stop, OSError("closed"), ValueError("in turn")))


def test_stop_is_found_behind_cause_and_context():
    stop = Stop(StopReason.CANCEL)
    error = raised(stop, OSError("closed"))
    error.__cause__ = KeyError("why")

    assert caused_by_stop(error)


def test_stop_is_found_in_an_exception_group():
    stop = Stop(StopReason.SHUTDOWN)
    group = BaseExceptionGroup("two tasks", [ValueError("one"), BaseExceptionGroup("inner", [stop])])

    assert caused_by_stop(raised(group, RuntimeError("wrapped")))


def test_other_error_is_not_caused_by_a_stop():
    one, other = ValueError("one"), KeyError("other")
    one.__context__, other.__context__ = other, one  # a ring

    assert not caused_by_stop(one)
