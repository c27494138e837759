"""Runs `dataloader top`: reads the running jobs in a thread, and does what the keys ask for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from dataloader.app.cli import text
from dataloader.app.cli.remote import RemoteService
from dataloader.app.features.where.screen import Screen
from dataloader.app.features.where.top_view import Action, TopView, Verb
from dataloader.app.features.where.where_lines import where_lines
from dataloader.errors import ClientError

_INTERVAL_SEC = 2.0
_KEY_TIMEOUT_SEC = 0.2
_LOG_LINES = 200


class JobsReader:
    """Reads the running jobs every two seconds. Its thread ends with the process."""

    def __init__(self, read: Callable[[], text.Payload]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._news: text.Payload | ClientError | None = None  # under the lock
        self._is_over = threading.Event()
        self._is_due = threading.Event()
        threading.Thread(target=self._run, name="read-running-jobs", daemon=True).start()

    def take_news(self) -> text.Payload | ClientError | None:
        """The last answer, or why there is none; once."""
        with self._lock:
            news, self._news = self._news, None
        return news

    def read_soon(self) -> None:
        self._is_due.set()

    def close(self) -> None:
        self._is_over.set()
        self._is_due.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._is_due.clear()
            try:
                news: text.Payload | ClientError = self._read()
            except ClientError as error:
                news = error
            with self._lock:
                self._news = news
            self._is_due.wait(_INTERVAL_SEC)


def run_top(service: RemoteService, query: dict[str, Any]) -> None:
    view, reader = TopView(), JobsReader(lambda: service.send("list_running_jobs", **query))
    try:
        with Screen() as screen:
            while True:
                news = reader.take_news()
                if isinstance(news, ClientError):
                    view.problem = str(news)
                elif news is not None:
                    view.show_jobs(news)
                    if view.detail_verb is Verb.STACK:
                        _perform(service, view, Action(Verb.STACK, view.selected))
                screen.draw(view.lines(*screen.size))
                key = screen.read_key(_KEY_TIMEOUT_SEC)
                action = None if key is None else view.on_key(key)
                if action is not None and action.verb is Verb.QUIT:
                    return
                if action is not None:
                    _perform(service, view, action)
                    reader.read_soon()
    except EOFError:  # the window was closed
        return
    finally:
        reader.close()


def _perform(service: RemoteService, view: TopView, action: Action) -> None:
    job_id = UUID(action.job_id)
    try:
        match action.verb:
            case Verb.STACK:
                view.show_detail(Verb.STACK, list(where_lines(service.send("locate_job", job_id=job_id))))
            case Verb.LOG:
                lines = service.send("get_job_logs", job_id=job_id, tail=_LOG_LINES)["lines"]
                view.show_detail(Verb.LOG, [_log_line(line) for line in lines] or ["No log output."])
            case Verb.CANCEL:
                service.send("cancel_job", job_id=job_id, repeatable=True)
                view.notice = f"The cancel of job {job_id} is requested."
    except ClientError as error:
        view.notice = str(error)


def _log_line(line: text.Payload) -> str:
    return f"{text.format_time(line['ts'])}  {text.one_line(line['level']):<8} {text.printable(line['line'])}".rstrip()
