"""The main program of an isolated process of this interpreter."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dataloader.app.features.registry import FEATURES
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import ClaimedJob
from dataloader.pipelines import contract, targets
from dataloader.pipelines.contract import registry
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.job_args import RESULT_KEY, SECRET_KEY, substitute
from dataloader.pipelines.offload import RemoteWorkerLost
from dataloader.pipelines.retry import RetryAction
from dataloader.pipelines.runner import run_task
from dataloader.workers.connections.own_connections import wrap_drivers
from dataloader.workers.context import ContextSettings, JobContext
from dataloader.workers.isolation.child_program import (
    MAX_LINE_LENGTH,
    ChildProgram,
    ParentChannel,
    UnknownTask,
    run_program,
    set_limits,
)
from dataloader.workers.logs.writer import POSITION_STREAM
from dataloader.workers.offloads.remote_log import position_line
from dataloader.workers.offloads.service import OffloadService
from dataloader.workers.reports.secrets import Redactor
from dataloader.workers.reports.sentry import report_error


def main(descriptor: int) -> None:
    run_program(descriptor, IsolatedProgram)


class IsolatedContext(JobContext):
    """The context of the one job of this process."""

    def __init__(self, parent: ParentChannel, job: ClaimedJob, settings: ContextSettings) -> None:
        super().__init__(job, settings)
        self._parent = parent

    def write_lines(self, stream: str, lines: Sequence[str]) -> None:
        for line in lines:
            self._parent.send({"log": ["INFO", stream, self.redactor.redact_text(line)[:MAX_LINE_LENGTH]]})

    def write_log_position(self, name: str, position: str) -> None:
        self._parent.send({"log": ["INFO", POSITION_STREAM, position_line(name, self.job.run_id, position)]})


class IsolatedProgram(ChildProgram):
    """Runs a task of this process's packages or settings."""

    context: IsolatedContext

    def __init__(self, parent: ParentChannel, spec: dict[str, Any]) -> None:
        connection_settings = spec["connection_settings"] and ConnectionSettings(**spec["connection_settings"])
        settings = ContextSettings(
            connection_settings=connection_settings,
            max_result_bytes=spec["max_result_bytes"],
            follow_up_lease_sec=spec["follow_up_lease_sec"],
            declared_job_fields=spec["declared_job_fields"],
            features=tuple(feature for feature in FEATURES if feature.name in spec["features"]),
            offloads=OffloadService(Engines(spec["executors"])) if spec["executors"] else None,
        )
        context = IsolatedContext(parent, ClaimedJob.from_json(spec["job"]), settings)
        context.redactor = Redactor(spec["secrets"])
        context.owns_connections = spec["connection_check"]
        if connection_settings is None or connection_settings.wrap_drivers:
            wrap_drivers()
        super().__init__(parent, spec, context)

    def run(self) -> dict[str, Any]:
        message: dict[str, Any] = self.context.run_owning_connections(super().run)
        is_settled = self.context.connections is not None and self.context.connections.settled
        return {"kind": "settled"} if is_settled else message

    def execute(self) -> Any:
        spec, context = self.spec, self.context
        task = _load_task(spec, context)
        self.rules, self.has_command_line = task.options.rules, task.options.argv is not None
        self.task_module = task.module
        args = json.loads(context.job.args_text)
        if spec["secrets"] or spec["results"]:
            args = substitute(args, {SECRET_KEY: spec["secrets"], RESULT_KEY: spec["results"]})
        if context.job.checkpoint_text is not None:
            context.reported.restore(context.job.progress_text, json.loads(context.job.checkpoint_text))
        context.check()
        context.task_target = task.options.target
        if context.claim_task_target():
            return context.targets.result
        sys.argv = [context.task, *task.command_line(args)]
        set_limits(spec)
        return run_task(task, args, context)

    def error_message(self, error: BaseException) -> dict[str, Any]:
        message = super().error_message(error)
        is_lost = isinstance(error, RemoteWorkerLost)
        is_final = message["decision"] == RetryAction.FAIL and not message["stopped"] and not is_lost
        is_reported = is_final and report_error(error, self.context.job, before_exit=True)
        return {**message, "reported": is_reported, "crashed": is_lost}

    def cancel_query(self) -> None:
        if self.context.connections is not None:  # in a thread: a server that does not answer must not delay a stop
            threading.Thread(target=self.context.connections.cancel, daemon=True).start()

    def close(self) -> None:
        if self.context.connections is not None:
            self.context.connections.close()


def _load_task(spec: dict[str, Any], context: JobContext) -> contract.Task:
    settings = spec["connection_settings"]
    if settings is not None:
        targets.configure(spec["endpoints"], settings["targets"], spec["tokens"], fallback_dsn=lambda: settings["dsn"])
    failures: dict[str, str] = {}
    if context.task in spec["tasks"]:  # a task of the settings needs no module but its own
        failures = contract.load_tasks((), {context.task: spec["tasks"][context.task]})
    elif not _is_registered_by(spec["module"], context.task):
        failures = contract.load_tasks(spec["packages"], spec["tasks"])
    task = registry.get(context.task)
    if task is not None:
        return task
    broken = "; ".join(f"{name}: {error.strip().splitlines()[-1]}" for name, error in failures.items())
    raise UnknownTask(f"the process does not know the task {context.task!r} (broken modules: {broken or 'none'})")


def _is_registered_by(module: str | None, task: str) -> bool:
    """Import the module of the task's function, which mostly registers it: it needs no other one then."""
    if module is not None:
        with suppress(Exception):  # the error is reported when all modules are loaded
            importlib.import_module(module)
    return registry.get(task) is not None
