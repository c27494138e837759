"""The same attempt in a process of its own, or a program as the job: how it begins, and what its end means.

The worker's thread watches over it (`child.py`). The lease is renewed by this process, so that a job may hold its
interpreter for minutes.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from app.queue.attempt_sessions import session_name
from pipelines.contract import Fail, Kind, Options, StopReason, Task
from pipelines.options import Command
from pipelines.retry import Answer
from workers.attempt import Attempt
from workers.child import Child, Exit, Unstarted
from workers.child_environment import session_variables
from workers.outcome import (
    Abandoned,
    Ending,
    Failure,
    Finished,
    crashed,
    describe,
    failed,
    failure_of,
    readable_policy,
    success,
)
from workers.secrets import NoSecret, veiled

_OUT_OF_ROOM = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_ROOM_AGAIN = 10.0
_WITHHELD = ("DL_", "PG")  # our own settings, and libpq's
_POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_apart(attempt: Attempt, task: Task, args: dict[str, Any]) -> Ending:
    """Run the task in a process of its own until it has ended, one way or the other."""
    try:
        if task.kind is Kind.COMMAND:
            return _run_command(attempt, task, args)
        return _run_child(attempt, task)
    except Unstarted as unstarted:
        error = unstarted.error
        if isinstance(error, OSError) and error.errno in _OUT_OF_ROOM:  # the machine's fault, and not the job's
            left = attempt.left()
            left = replace(left, notes={**(left.notes or {}), "code": "out_of_resources"})
            return failed(Failure(describe(error), None, Answer.SNOOZE, _ROOM_AGAIN), left)
        return failed(failure_of(attempt.job, error, attempt.options, attempt.tools.retry), attempt.left())


def _run_child(attempt: Attempt, task: Task) -> Ending:
    # Not through PYTHONPATH, which the interpreters that the pipeline itself may start would inherit.
    paths = [path or os.getcwd() for path in sys.path]
    with ExitStack() as until_started:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise Unstarted(error) from error
        until_started.enter_context(theirs)
        begin = f"import sys; sys.path[:] = {paths!r}; from workers.childmain import main; main({theirs.fileno()})"
        env = {**os.environ, **_session_variables(attempt, task.options, os.environ.get("PGOPTIONS", ""))}
        child = Child(attempt, [sys.executable, "-c", begin], channel=ours, inherit=(theirs.fileno(),), env=env)
    child.send(_recipe(attempt, task, parent=child.pid))
    return _ending(attempt, child.watch())


def _recipe(attempt: Attempt, task: Task, *, parent: int) -> dict[str, Any]:
    job, tools, options = attempt.job, attempt.tools, task.options
    return {
        "packages": list(tools.packages),
        "tasks": tools.tasks,
        "endpoints": tools.endpoints,
        "tokens": tools.tokens,
        "secrets": dict(attempt.veil.secrets),
        "places": None if tools.places is None else asdict(tools.places),
        "facts": {key: str(value) if key.endswith("_id") else value for key, value in asdict(attempt.facts).items()},
        "args": job.args_text,
        "progress": job.progress_text,
        "checkpoint": job.checkpoint_text,
        "memory_mb": options.memory_mb,
        "cpu_sec": options.cpu_sec,
        "parent": parent,
    }


def _run_command(attempt: Attempt, task: Task, args: dict[str, Any]) -> Ending:
    assert task.command is not None  # noqa: S101 - a task of this kind has one
    if attempt.veil:
        return attempt.refuse(
            "a command's arguments can be read by everybody on its machine, so they hold no secret; give it in the "
            'command\'s env, as in {"env": {"TOKEN": {"$secret": "name"}}}'
        )
    try:
        argv = task.argv(args)
        given = _environment(attempt, task.command)
    except Fail as error:
        return attempt.refuse(f"the command's arguments: {error}")
    except NoSecret as error:
        return attempt.refuse(str(error))
    env = {
        "PYTHONUNBUFFERED": "1",  # its log is to be read while it runs
        **given,
        **_session_variables(attempt, task.options, given.get("PGOPTIONS", "")),
        "DL_JOB_ID": str(attempt.job_id),
        "DL_ATTEMPT": str(attempt.attempt),
    }
    child = Child(attempt, list(argv), cwd=task.command.cwd, env=env)
    how = child.watch()
    if _lost(attempt):
        return Abandoned()
    if how.by_us:
        return attempt.end_of_stop()
    left = how.left(attempt)
    if how.code == 0:
        return success({"exit_code": 0}, left)
    _log_withheld(attempt, env)
    told = RuntimeError(f"{how.describe()}{child.last_words()}")
    return failed(_without_traceback(failure_of(attempt.job, told, attempt.options, attempt.tools.retry)), left)


def _log_withheld(attempt: Attempt, env: Mapping[str, str]) -> None:
    """Name the variables of libpq that a failed program was not given: it may have looked for its server there."""
    names = sorted(name for name in os.environ if name.startswith("PG") and name not in env)
    if names:
        attempt.tools.log(
            attempt.job_id, attempt.attempt, "WARNING", "log",
            f"the program was not given these variables of the worker: {', '.join(names)}; name those that it needs in"
            " the task's inherit, or set its own in env",
        )  # fmt: skip


def _session_variables(attempt: Attempt, options: Options, own_options: str) -> dict[str, str]:
    check = options.connection_check and attempt.tools.connection_check.is_accepted()
    name = session_name(attempt.job_id, attempt.job.run_id)
    return session_variables(name, own_options=own_options, check=check)


def _environment(attempt: Attempt, command: Command) -> dict[str, str]:
    """The worker's own, without what it needs for itself: the database's password is not the program's business unless
    its task says so. And what the task gives it."""
    secrets = {variable: attempt.tools.vault.read(name) for variable, name in command.secret_env.items()}
    if secrets:
        attempt.veil = veiled({command.secret_env[variable]: value for variable, value in secrets.items()})
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(_WITHHELD) or name in command.inherit
    }
    return {**kept, **command.env, **secrets}


def _ending(attempt: Attempt, how: Exit) -> Ending:
    end = how.end
    if end is not None and end["how"] == "finished":
        return Finished()
    if _lost(attempt):
        return Abandoned()
    if end is None:
        return attempt.end_of_stop() if how.by_us else _died(attempt, how)
    match end["how"]:
        case "value":
            return success(end["result"], how.left(attempt))
        case "stop":
            if attempt.stopping is None:  # it found out by itself, as one does that cannot commit any more
                attempt.stop(StopReason(end["reason"]))
            return Abandoned() if _lost(attempt) else attempt.end_of_stop()
        case "unknown":
            told = RuntimeError(end["told"])  # here it is known: a module may be just about to be replaced
            failure = failure_of(attempt.job, told, attempt.options, attempt.tools.retry)
            return failed(_without_traceback(failure), how.left(attempt))
        case _:
            if end["stopped"] and attempt.stopping is not None:
                return attempt.end_of_stop()
            return failed(_failure(attempt, end), how.left(attempt))


def _died(attempt: Attempt, how: Exit) -> Ending:
    """Without a last word. A polite signal that was not ours came from someone who ends processes, such as a service
    manager: the job did nothing wrong."""
    if -how.code in _POLITE:
        told = RuntimeError(how.describe())
        failure = failure_of(attempt.job, told, attempt.options, attempt.tools.retry)
        return failed(_without_traceback(failure), how.left(attempt))
    return crashed(attempt.job, how.describe(), attempt.options, attempt.tools.retry, how.left(attempt))


def _without_traceback(failure: Failure) -> Failure:
    """One that would show our code alone."""
    return replace(failure, traceback=None)


def _lost(attempt: Attempt) -> bool:
    return attempt.stopping is StopReason.LEASE_LOST


def _failure(attempt: Attempt, end: dict[str, Any]) -> Failure:
    """The child has seen the error, and knows its rules; how long to wait is for the job's policy to say."""
    answer, pause = Answer(end["answer"]), end["pause"]
    if answer is Answer.RETRY:
        policy = readable_policy(attempt.job, attempt.options, attempt.tools.retry)
        pause = max(pause, policy.pause(attempt.job.attempt))
    return Failure(end["told"], end["traceback"], answer, pause)
