from __future__ import annotations

from dataloader.app.queue.job import Settlement
from dataloader.pipelines.contract import Args, Pipelines, Stop, StopReason
from dataloader.pipelines.failures import caused_by_stop
from dataloader.pipelines.retry import RetryAction
from dataloader.workers.outcome import failure
from tests.support.claimed_jobs import attempt_with


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


def test_long_error_is_cut_before_its_secrets_are_masked():
    attempt = attempt_with(task="long")
    secret = "postgresql://etl:hunter22@host/db"
    pipelines = Pipelines()

    @pipelines.register("long", no_retry=[ValueError])
    def fail(args: Args) -> None:
        raise ValueError(f"{secret} {'x' * 20_000_000} {secret}")

    end = attempt.run(pipelines.get("long"))

    assert isinstance(end, Settlement)
    for text in (end.error, end.traceback):
        assert text is not None
        assert len(text) < 1_000_000
        assert text.count("postgresql://etl:***@host/db") == 2
        assert "hunter22" not in text


def test_pause_of_a_snooze_is_never_zero():
    end = failure(RetryAction.SNOOZE, 0.0, "not now", error_fingerprint="Snooze")

    assert (end.retry_in_sec, end.refund_attempt) == (1, True)
