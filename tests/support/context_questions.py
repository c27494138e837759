"""What `tests/workers/test_context_contract.py` asks every kind of context: calls, and what they return or raise.

Another interpreter runs this file too: it is written for Python 3.8, and uses what a task may import.
"""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal

from dataloader import Checkpoint, Fail, Progress, Snooze, Stop, Wait

ID = "00000000-0000-0000-0000-000000000001"
START = datetime(2030, 1, 31, tzinfo=timezone.utc)
OPTIONS = "queue, lock_key, idempotency_key, priority, available_at, max_attempts, limits"
TEXT = "must be a text that is neither empty nor has control characters"
LIMIT = "a limit's name is a text that is neither empty nor has control characters"

QUESTIONS = {
    # name → (call of the context, what it returns or raises)
    "task": (lambda ctx: [ctx.task, ctx.attempt, ctx.max_attempts], ["ask", 2, 5]),
    "job_id": (lambda ctx: type(ctx.job_id).__name__, "UUID"),
    "trace": (lambda ctx: ctx.traceparent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    "partition": (lambda ctx: ctx.partition, "2030-01-31"),
    "logical_at": (lambda ctx: ctx.logical_at.isoformat(), "2030-02-01T00:00:00+00:00"),
    "interval": (lambda ctx: [ctx.interval.start == START, str(ctx.interval.end.date())], [True, "2030-02-01"]),
    "resume": (lambda ctx: ctx.resume, {"page": 3}),
    "stopping_in": (lambda ctx: ctx.stopping_in, None),
    "upstream": (lambda ctx: dict(ctx.upstream), {}),
    "log of no level": (lambda ctx: hasattr(ctx.log, "critical"), False),
    "log without a message": (lambda ctx: ctx.log.info(), "TypeError"),
    "sleep": (lambda ctx: ctx.sleep(0), None),
    "progress": (lambda ctx: ctx.progress(1, 10, "rows", file="a"), None),
    "progress again": (lambda ctx: ctx.progress(2, nothing=None), None),
    "progress of four": (lambda ctx: ctx.progress(1, 2, "rows", 4), "TypeError"),
    "count": (lambda ctx: [ctx.count(read=3), ctx.count(read=1, bad=1)], [None, None]),
    "checkpoint": (lambda ctx: [ctx.checkpoint((1, Decimal("2.5"), START)), ctx.resume],
                   [None, [1, "2.5", "2030-01-31T00:00:00+00:00"]]),
    "checkpoint too large": (lambda ctx: ctx.checkpoint("x" * 1_000_000),
        "ValueError: this checkpoint cannot be kept: 1000002 bytes of JSON; at most 1000000 are kept"),
    "checkpoint of a set": (lambda ctx: [ctx.checkpoint({7}), ctx.resume], [None, [7]]),
    "checkpoint cleared": (lambda ctx: [ctx.checkpoint(None), ctx.resume], [None, None]),
    "check passes": (lambda ctx: ctx.check("rows", 5, min=1, max=Decimal(9)), None),
    "check warns": (lambda ctx: ctx.check("bad", 5, max=1, severity="warn"), None),
    "check fails": (lambda ctx: ctx.check("few", 1, min=5),
                    "Fail: the check 'few' failed: 1 is outside its limits: low 5"),
    "check without history": (lambda ctx: ctx.check("new", 1, vs="median:7", tolerance=0.5), None),
    "check without a name": (lambda ctx: ctx.check("", 1), "ValueError: name " + TEXT),
    "check of a text": (lambda ctx: ctx.check("x", "many"), "ValueError: value must be a number, not 'many'"),
    "check against nothing": (lambda ctx: ctx.check("x", 1, vs="mean:7", tolerance=1),
        "ValueError: vs must be 'median:N' with N from 1 to 365, such as 'median:7', not 'mean:7'"),
    "check of no severity": (lambda ctx: ctx.check("x", 1, severity="bad"),
                             "ValueError: severity must be 'fail' or 'warn', not 'bad'"),
    "check with another option": (lambda ctx: ctx.check("x", 1, low=1), "TypeError"),
    "produced": (lambda ctx: ctx.produced("sales", rows=7, partition="p", schema={"id": int}), None),
    "produced again": (lambda ctx: ctx.produced("sales", rows=8, partition="p"), None),
    "produced nothing": (lambda ctx: ctx.produced(" "), "ValueError: dataset " + TEXT),
    "produced half": (lambda ctx: ctx.produced("x", rows=0.5), "ValueError: rows must be a whole number, not 0.5"),
    "produced too large a schema": (lambda ctx: ctx.produced("x", schema="x" * 70_000),
                                    "ValueError: schema cannot be kept: 70002 bytes of JSON; at most 64000 are kept"),
    "consumed": (lambda ctx: ctx.consumed("orders"), None),
    "consumed rows": (lambda ctx: ctx.consumed("orders", rows=1), "TypeError"),
    "link": (lambda ctx: ctx.link("report", "https://example.org/1"), None),
    "link to a script": (lambda ctx: ctx.link("x", "javascript:alert(1)"),
        "ValueError: url must begin with http:// or https:// and name a host, not 'javascript:alert(1)'"),
    "links": (lambda ctx: [ctx.link(str(n), "https://example.org/") for n in range(20)],
              "ValueError: a job has at most 20 links"),
    "enqueue": (lambda ctx: type(ctx.enqueue("next", {"n": 1}, priority=7)).__name__, "UUID"),
    "enqueue with another option": (lambda ctx: ctx.enqueue("next", {}, colour="red"),
        "TypeError: a job to enqueue has no option 'colour'; expected one of: " + OPTIONS),
    "enqueue no task": (lambda ctx: ctx.enqueue(None),
                        "TypeError: a job to enqueue names its task as a text, not None"),
    "enqueue a list": (lambda ctx: ctx.enqueue("next", [1]), "TypeError: args is an object with names, not [1]"),
    "enqueue a time": (lambda ctx: ctx.enqueue("next", {"at": START}),
        "ValueError: args is not JSON that PostgreSQL can store: Object of type datetime is not JSON serializable"),
    "fan_out": (lambda ctx: [len(ids) for ids in ctx.fan_out([{"task": "a"}, {"task": "a"}], then={"task": "b"})[:1]],
                [2]),
    "fan_out of no task": (lambda ctx: ctx.fan_out([{"args": {}}], then={"task": "b"}),
                           "TypeError: a job to enqueue names its task as a text, not None"),
    "fan_out on nothing": (lambda ctx: ctx.fan_out([], then={"task": "b"}, on="never"),
        "ValueError: on is 'succeeded', 'ended' or 'failed', and need 'all' or 'any', not 'never' and 'all'"),
    "fan_out too many": (lambda ctx: ctx.fan_out([{"task": "a"}] * 1001, then={"task": "b"}),
                         "ValueError: a job waits for at most 1,000 others, not 1,001"),
    "acquire": (lambda ctx: ctx.acquire("no such rate"), None),
    "acquire none": (lambda ctx: ctx.acquire("api", 0),
        "ValueError: the number of calls in 'api' must be a whole number from 1 to 1,000,000"),
    "acquire of no limit": (lambda ctx: ctx.acquire(""), "ValueError: " + LIMIT),
    "wait for a text": (lambda ctx: Wait(ID), "TypeError: Wait takes the ids of jobs as a list"),
    "wait for no id": (lambda ctx: Wait(["x"]), "ValueError: badly formed hexadecimal UUID string"),
    "wait": (lambda ctx: [str(job) for job in Wait([ID, ID]).jobs], [ID]),
    "snooze too short": (lambda ctx: Snooze(-1), "ValueError: Snooze takes from 0 to 31622400 seconds, not -1"),
    "values": (lambda ctx: [Checkpoint(1).cursor, Progress(1).total, issubclass(Fail, Exception)], [1, None, True]),
}  # fmt: skip

# name → a call that raises Stop once the attempt is to stop
SAFE_POINTS = {
    "check": lambda ctx: ctx.check(),
    "sleep": lambda ctx: ctx.sleep(60),
    "progress": lambda ctx: ctx.progress(1),
    "count": lambda ctx: ctx.count(rows=1),
    "checkpoint": lambda ctx: ctx.checkpoint(1),
    "produced": lambda ctx: ctx.produced("d"),
    "consumed": lambda ctx: ctx.consumed("d"),
    "link": lambda ctx: ctx.link("report", "https://host"),
    "enqueue": lambda ctx: ctx.enqueue("never"),
    "fan_out": lambda ctx: ctx.fan_out([], then={"task": "never"}),
    "acquire": lambda ctx: ctx.acquire("no such rate"),
    "log": lambda ctx: ctx.log.info("again"),
}
CLEAN_UP = ("progress", "count", "checkpoint", "produced", "link", "log")  # these raise nothing in a clean-up


def ask(args, ctx):
    """A task that answers all questions."""
    answers = {name: _answer(call, ctx, expected) for name, (call, expected) in QUESTIONS.items()}
    ctx.log.info("loaded", rows=3, table="a b", credential="hunter2")
    return answers


def ask_while_stopped(args, ctx):
    """A task that is stopped; returns which calls raised Stop, and which did in its clean-up."""
    from dataloader.pipelines.context import StopReason

    ctx.stop(StopReason.CANCEL)
    stopped = {name: _answer(call, ctx, "Stop") for name, call in SAFE_POINTS.items()}
    cleaned = {}
    try:
        ctx.check()
    except Stop:
        cleaned = {name: _answer(SAFE_POINTS[name], ctx, "") for name in CLEAN_UP}
    return {"stopped": stopped, "cleaned": cleaned, "stopping_in": ctx.stopping_in, "reason": str(ctx.stop_reason)}


def report_secret(args, ctx):
    """A task that reports a secret in all ways, and raises it."""
    secret = args["password"]
    ctx.progress(message=secret)
    ctx.checkpoint({"key": secret})
    ctx.link("with " + secret, "https://user:password@example.org/" + secret)
    ctx.check("rows of " + secret, 1)
    ctx.produced("table " + secret, partition=secret, schema={"comment": secret})
    ctx.log.info("read " + secret, credential="hunter2", rows=1)
    raise ValueError("cannot open " + secret)


def _answer(call, ctx, expected):
    """What a call returns; for an error its class, with its text unless Python has written that."""
    try:
        value = call(ctx)
    except BaseException as error:
        name = type(error).__name__
        return name if expected in ("TypeError", "Stop") else "%s: %s" % (name, error)  # noqa: UP031
    return value
