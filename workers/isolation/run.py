"""Runs an attempt in a process of its own: a task of Python code, or a command.

The worker's thread watches the process (`child.py`). The worker process renews the lease, so that a job may hold its
own interpreter for minutes.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any
from uuid import UUID

from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.app.queue.job import Released, ReleaseReason
from dataloader.pipelines.contract import Command, Fail, StopReason, Task, TaskKind, TaskOptions
from dataloader.pipelines.failures import describe_error
from dataloader.pipelines.json_values import encode_strictly
from dataloader.pipelines.retry import RetryAction
from dataloader.workers.attempt import Attempt
from dataloader.workers.connections.check_options import CHECK_OPTIONS
from dataloader.workers.isolation.child import ChildProcess, Exit, StartFailed
from dataloader.workers.isolation.fork_server import ForkRequest
from dataloader.workers.isolation.interpreter import STANDALONE_PROGRAM, standalone_spec
from dataloader.workers.isolation.processes import SpawnedProcess, WatchedProcess
from dataloader.workers.outcome import (
    Outcome,
    SettledByTask,
    add_event_fields,
    crashed,
    failed,
    failure,
    retry_policy_of,
    success,
)
from dataloader.workers.reports.secrets import Redactor, SecretUnavailable

_RESOURCE_ERRNOS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_RESOURCE_RETRY_SEC = 10.0
_PRIVATE_ENV_PREFIXES = ("DL_", "PG")  # our own settings, and libpq's
# Of our interpreter: with them another one would load our packages.
_INTERPRETER_VARIABLES = frozenset({"PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"})
_TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_isolated(attempt: Attempt, task: Task, args: dict[str, Any]) -> Outcome:
    """Run the task in a process of its own until the process has ended."""
    try:
        if task.kind is TaskKind.COMMAND:
            return _run_command(attempt, task, args)
        return _run_child(attempt, task) if task.options.python is None else _run_standalone(attempt, task, args)
    except StartFailed as start:
        error = start.error
        if isinstance(error, OSError) and error.errno in _RESOURCE_ERRNOS:  # the machine's fault, not the job's
            snooze = failure(
                RetryAction.SNOOZE, _RESOURCE_RETRY_SEC, describe_error(error), error_fingerprint=type(error).__name__
            )
            return add_event_fields(snooze, {"code": "out_of_resources"})
        return failed(attempt.job, error, attempt.options)


def _run_child(attempt: Attempt, task: Task) -> Outcome:
    with ExitStack() as until_started:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise StartFailed(error) from error
        until_started.enter_context(theirs)
        env = {**os.environ, **session_variables(attempt, task.options, os.environ.get("PGOPTIONS", ""))}
        child = ChildProcess(attempt, partial(_start_child, attempt, theirs.fileno(), env), channel=ours)
    child.send(_child_spec(attempt, task, parent_pid=child.pid))
    exit_ = child.wait()
    return exit_.add_to(_outcome_of(attempt, exit_))


def _start_child(attempt: Attempt, channel: int, env: Mapping[str, str]) -> WatchedProcess:
    """Fork a process, or start an interpreter where that cannot be done."""
    # Not through PYTHONPATH, which interpreters that the pipeline starts would inherit.
    paths = [path or os.getcwd() for path in sys.path]
    locks = attempt.settings.process_lock.inherited_descriptors()
    request = ForkRequest(
        channel=channel, locks=locks, env=env, paths=paths, is_stopped=lambda: attempt.stop_reason is not None,
        lease_ends_at=lambda: attempt.lease.ends_at,
    )  # fmt: skip
    forked = attempt.settings.fork_server.fork(request)
    if forked is not None:
        return forked
    code = (
        f"import sys; sys.path[:] = {paths!r}; "
        f"from dataloader.workers.isolation.child_main import main; main({channel})"
    )
    argv = [sys.executable, "-c", code]
    return SpawnedProcess(argv, lease_ends_at=attempt.lease.ends_at, descriptors=(channel, *locks), env=env)


def _child_spec(attempt: Attempt, task: Task, *, parent_pid: int) -> dict[str, Any]:
    settings, connection_settings = attempt.settings, attempt.settings.connection_settings
    passed_on = (
        "packages", "tasks", "endpoints", "tokens", "max_result_bytes", "follow_up_lease_sec", "declared_job_fields",
    )  # fmt: skip
    return {
        **{name: getattr(settings, name) for name in passed_on},
        "features": [feature.name for feature in settings.features],
        "executors": settings.offloads.engines.resolved_settings() if settings.offloads is not None else {},
        "secrets": attempt.redactor.secrets,
        "results": attempt.results,
        "connection_settings": None if connection_settings is None else asdict(connection_settings),
        "job": attempt.job.to_json(),
        "memory_mb": task.options.memory_mb,
        "cpu_sec": task.options.cpu_sec,
        "module": task.module if _is_in_packages(task.module, settings.packages) else None,
        "parent_pid": parent_pid,
        "connection_check": task.options.connection_check,
    }


def _is_in_packages(module: str, packages: Sequence[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _run_standalone(attempt: Attempt, task: Task, args: dict[str, Any]) -> Outcome:
    """Run it in the interpreter that the task names, which has none of our packages."""
    try:
        task.refuse_args(args)
        argv = None if task.options.argv is None else task.command_line(args)
    except Fail as error:
        return attempt.fail_unstarted(str(error))
    inherited = {name: value for name, value in os.environ.items() if name not in _INTERPRETER_VARIABLES}
    env = {**inherited, **session_variables(attempt, task.options, os.environ.get("PGOPTIONS", ""))}
    with ExitStack() as until_started:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise StartFailed(error) from error
        until_started.enter_context(theirs)
        start = partial(
            SpawnedProcess,
            [str(task.options.python), STANDALONE_PROGRAM, str(theirs.fileno())],
            lease_ends_at=attempt.lease.ends_at,
            descriptors=(theirs.fileno(), *attempt.settings.process_lock.inherited_descriptors()),
            cwd=task.options.cwd,
            env=env,
        )
        child = ChildProcess(attempt, start, channel=ours)
    child.send({**standalone_spec(attempt, task, args, argv), "parent_pid": child.pid})
    exit_ = child.wait()
    return exit_.add_to(_outcome_of(attempt, exit_))


def _run_command(attempt: Attempt, task: Task, args: dict[str, Any]) -> Outcome:
    assert task.command is not None  # noqa: S101 - a task of this kind has one
    if attempt.redactor:
        return attempt.fail_unstarted(
            "every user of the machine can read a command's arguments, so they hold no secret; name it in the "
            "command's env, as a reference in place of the value"
        )
    try:
        argv = task.command_line(args)
        own_env = _command_environment(attempt, task.command)
    except Fail as error:
        return attempt.fail_unstarted(f"the command's arguments: {error}")
    except SecretUnavailable as error:
        return attempt.fail_unstarted(str(error))
    env = {
        "PYTHONUNBUFFERED": "1",  # its log is read while it runs
        **own_env,
        **session_variables(attempt, task.options, own_env.get("PGOPTIONS", "")),
        "DL_JOB_ID": str(attempt.job_id),
        "DL_ATTEMPT": str(attempt.attempt),
        **_target_variables(attempt, task),
    }
    locks, lease_ends_at = attempt.settings.process_lock.inherited_descriptors(), attempt.lease.ends_at
    start = partial(SpawnedProcess, argv, lease_ends_at=lease_ends_at, descriptors=locks, cwd=task.command.cwd, env=env)
    child = ChildProcess(attempt, start)
    exit_ = child.wait()
    if exit_.stopped_by_us:
        return exit_.add_to(attempt.stop_outcome())
    if exit_.code == 0:
        return exit_.add_to(success({"exit_code": 0}))
    withheld = sorted(name for name in os.environ if name.startswith("PG") and name not in env)
    if withheld:  # it may have needed them to find its server
        attempt.settings.log(
            attempt.job_id, attempt.attempt, "WARNING", "log",
            f"the program was not given these variables of the worker: {', '.join(withheld)}; name those that it needs"
            " in the task's inherit, or set its own in env",
        )  # fmt: skip
    return exit_.add_to(
        _failed_without_traceback(attempt, f"{exit_.describe()}{child.stderr_tail()}", exit_.error_fingerprint)
    )


def session_variables(attempt: Attempt, options: TaskOptions, own_options: str) -> dict[str, str]:
    """Return PGAPPNAME and PGOPTIONS: connections that the process opens carry the attempt's name, by which they are
    ended with it, and their server ends them by itself when the process is gone."""
    if options.connection_check and attempt.settings.connection_check.is_accepted():
        own_options = f"{CHECK_OPTIONS} {own_options}".strip()  # the task's own come last, so that they win
    name = attempt_application_name(attempt.job_id, attempt.job.run_id)
    return {"PGAPPNAME": name, **({"PGOPTIONS": own_options} if own_options else {})}


def _command_environment(attempt: Attempt, command: Command) -> dict[str, str]:
    """The worker's environment without its own settings, such as the database's password, and what the task adds."""
    secrets = {variable: attempt.settings.secret_store.read(name) for variable, name in command.secret_env.items()}
    if secrets:
        attempt.redactor = Redactor({command.secret_env[variable]: value for variable, value in secrets.items()})
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_PRIVATE_ENV_PREFIXES) or name in command.inherit
    }
    return {**inherited, **command.env, **secrets}


def _target_variables(attempt: Attempt, task: Task) -> dict[str, str]:
    """What a program needs to write to the task's target behind the attempt's fence; see `dataloader effects`."""
    if task.options.target is None or not attempt.targets.is_fenced(task.options.target):
        return {}
    row = attempt.targets.release(task.options.target)
    return {
        "DL_TARGET": task.options.target,
        "DL_RUN_ID": str(attempt.run_id),
        "DL_FENCE": str(row.fence),
        "DL_EFFECTS_TABLE": str(row.table.name),
        "DL_POSITION": encode_strictly(attempt.targets.states[task.options.target].position),
    }


def _outcome_of(attempt: Attempt, exit_: Exit) -> Outcome:
    message = exit_.result_message
    if message is None:
        return _outcome_without_result(attempt, exit_)
    match message["kind"]:
        case "settled":
            return SettledByTask()
        case "success":
            return success(message["result"])
        case "stopped":
            if attempt.stop_reason is None:  # it found out by itself, as one does that cannot commit any more
                attempt.stop(StopReason(message["reason"]))
            return attempt.stop_outcome()
        case "waits":
            jobs = [UUID(job_id) for job_id in message["jobs"]]
            return Released(ReleaseReason.WAITS, awaited=jobs, offloads=message.get("offloads", ()))
        case "unknown_task":  # this process knows it: a module may be in the middle of its replacement
            return _failed_without_traceback(attempt, message["message"], "unknown task")
    if message["stopped"] and attempt.stop_reason is not None:
        return attempt.stop_outcome()
    return _outcome_of_error(attempt, message)


def _outcome_of_error(attempt: Attempt, message: dict[str, Any]) -> Outcome:
    if message.get("crashed"):
        return crashed(attempt.job, message["message"], attempt.options, error_fingerprint=message["fingerprint"])
    attempt.is_failure_reported = message.get("reported", False) is True
    # The child decided whether to retry; the job's policy says how long to wait at least.
    action, delay_sec = RetryAction(message["decision"]), message["pause"]
    if action is RetryAction.RETRY:
        delay_sec = max(delay_sec, retry_policy_of(attempt.job, attempt.options).pause(attempt.job.attempt))
    return failure(
        action, delay_sec, message["message"], message["traceback"], error_fingerprint=message["fingerprint"]
    )


def _outcome_without_result(attempt: Attempt, exit_: Exit) -> Outcome:
    if exit_.stopped_by_us:
        return attempt.stop_outcome()
    if -exit_.code in _TERMINATION_SIGNALS:  # from another program, such as a service manager: not the job's fault
        return _failed_without_traceback(attempt, exit_.describe(), exit_.error_fingerprint)
    return crashed(attempt.job, exit_.describe(), attempt.options, error_fingerprint=exit_.error_fingerprint)


def _failed_without_traceback(attempt: Attempt, message: str, error_fingerprint: str) -> Outcome:
    """A traceback would show this module alone."""
    return failed(
        attempt.job,
        RuntimeError(message),
        attempt.options,
        has_traceback=False,
        error_fingerprint=error_fingerprint,
    )
