"""What a child without our packages asks of the queue's database: done here, by a thread that ends with the last.

The thread that watches the process must not wait for the database: it would delay the stop of the job.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from dataloader.pipelines.contract import Fail, Stop
from dataloader.workers.attempt import Attempt

_END_TIMEOUT_SEC = 2.0
_MAX_WAITING = 100  # requests: the threads of a child send one at a time, its forks may send more


class DatabaseCalls:
    """Requests of one child, one after another. Used by the thread that watches the process."""

    def __init__(self, attempt: Attempt, wake: Callable[[], None]) -> None:
        self._attempt, self._wake = attempt, wake
        self._replies: deque[dict[str, Any]] = deque()  # appended by any of the threads
        self._lock = threading.Lock()
        self._requests: deque[tuple[str, dict[str, Any]]] = deque()  # under the lock; the first is in progress
        self._is_over = False  # under the lock
        self._thread: threading.Thread | None = None
        self._calls: Mapping[str, Callable[..., Any]] = {
            "check_history": self._check_history,
            "enqueue": self._enqueue,
            "fan_out": self._fan_out,
            "upstream": self._upstream,
            "try_acquire": attempt.try_acquire,
            "target_access": self._target_access,
            "draw_fence": attempt.draw_fence,
            "redact": attempt.redact_value,
        }

    def start(self, name: str, arguments: dict[str, Any]) -> None:
        """Begin a call."""
        if name not in self._calls:
            self._replies.append({"value_error": f"no such call: {name[:100]}"})
            return
        with self._lock:
            is_idle, is_full = not self._requests, len(self._requests) >= _MAX_WAITING
            if not is_full:
                self._requests.append((name, arguments))
        if is_full:
            self._replies.append({"value_error": f"more than {_MAX_WAITING} requests at once"})
        elif is_idle:
            self._thread = threading.Thread(target=self._run, name=threading.current_thread().name, daemon=True)
            self._thread.start()

    def finished(self) -> list[dict[str, Any]]:
        """The replies that the child has not been sent."""
        return [self._replies.popleft() for _ in range(len(self._replies))]

    def end(self) -> None:
        """The process is gone: wait for the statement that it has left behind; begin no other."""
        with self._lock:
            self._is_over = True
        if self._thread is not None:
            self._thread.join(_END_TIMEOUT_SEC)

    def _run(self) -> None:
        request = self._requests[0]
        while True:
            self._replies.append(self._call(*request))
            self._wake()
            with self._lock:
                self._requests.popleft()
                if self._is_over or not self._requests:
                    self._requests.clear()
                    return
                request = self._requests[0]

    def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"value": self._calls[name](**arguments)}
        except Stop as stop:
            return {"stop": str(stop.reason)}
        except Fail as failure:
            return {"fail": str(failure)}
        except TypeError as error:
            return {"type_error": str(error)}
        except ValueError as error:
            return {"value_error": str(error)}
        except Exception as error:  # of the database: another attempt may have more luck
            return {"unavailable": f"{type(error).__name__}: {error}"}

    def _check_history(self, name: str, count: int) -> list[float]:
        return [*self._attempt.check_history(self._attempt.redact_text(name), count)]

    def _target_access(self, target: str) -> dict[str, str | int] | None:
        """How to connect to a target; None: it is the queue's own database."""
        settings = self._attempt.settings.connection_settings
        if settings is None or (dsn := settings.dsn_of(target)) == settings.dsn:
            return None
        return {"dsn": dsn, "application_name": self._attempt.own_application_name(), **settings.client_options}

    def _enqueue(self, **request: Any) -> str:
        return str(self._attempt.enqueue(**_decode_times(request)))

    def _fan_out(self, jobs: list[dict[str, Any]], then: dict[str, Any], **options: Any) -> list[Any]:
        jobs = [_decode_times(job) for job in jobs]
        ids, last = self._attempt.fan_out(jobs, then=_decode_times(then), **options)
        return [[str(job_id) for job_id in ids], str(last)]

    def _upstream(self) -> dict[str, list[Any]]:
        parents = self._attempt.upstream
        return {key: [str(p.job_id), str(p.status), p.result, p.error] for key, p in parents.items()}


def _decode_times(request: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError."""
    at = request.get("available_at")
    return request if not isinstance(at, str) else {**request, "available_at": datetime.fromisoformat(at)}
