from __future__ import annotations

from pipelines.contract import Stop, StopReason
from workers.outcome import came_from_stop


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


def test_an_error_of_the_cleaning_up_came_from_the_stop():
    stop = Stop(StopReason.CANCEL)

    assert came_from_stop(raised(stop, OSError("closed"), ValueError("in turn")))


def test_a_stop_is_found_behind_both_a_cause_and_a_context():
    stop = Stop(StopReason.CANCEL)
    error = raised(stop, OSError("closed"))
    error.__cause__ = KeyError("why")

    assert came_from_stop(error)


def test_a_stop_is_found_in_a_group_of_tasks_errors():
    stop = Stop(StopReason.SHUTDOWN)
    group = BaseExceptionGroup("two tasks", [ValueError("one"), BaseExceptionGroup("inner", [stop])])

    assert came_from_stop(raised(group, RuntimeError("wrapped")))


def test_an_error_of_its_own_did_not_come_from_a_stop():
    one, other = ValueError("one"), KeyError("other")
    one.__context__, other.__context__ = other, one  # a ring

    assert not came_from_stop(one)
