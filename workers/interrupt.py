"""Raises an exception in the thread of a pipeline that does not stop by itself."""

from __future__ import annotations

import ctypes
import threading

from dataloader.pipelines.contract import Stop, StopReason


class Interrupt(Stop):
    """Raised by the stop escalation in a pipeline's thread, between any two bytecodes."""

    def __init__(self) -> None:
        super().__init__(StopReason.CANCEL)


class InterruptibleThread:
    """The thread that runs a pipeline, as long as an interrupt may be raised in it: once."""

    _ident: int | None = None  # changed under the lock, as the next one
    _is_interrupted = False

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self._ident = threading.get_ident()

    @property
    def ident(self) -> int | None:
        """None: the pipeline has not begun, or has ended."""
        return self._ident

    def interrupt(self) -> bool:
        with self._lock:
            if self._ident is None or self._is_interrupted:
                return False
            self._is_interrupted = True
            error = ctypes.py_object(Interrupt)
            return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), error))

    def leave(self) -> None:
        """Allow no more interrupts; one that is pending is raised here.

        It is not taken back: taking back one that is being raised leaves CPython 3.11 with a flag that nothing clears,
        and a traced thread (a debugger, coverage) hangs on it.
        """
        with self._lock:
            self._ident = None
        for _ in range(2):  # the interpreter raises it where a loop turns back
            pass
