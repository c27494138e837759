"""Faults of the target, which is a server of its own with a proxy of its own."""

from __future__ import annotations

from contextlib import suppress

import psycopg2

from tests.chaos.fault import Fault


class TargetKilled(Fault):
    name, duration_sec = "target SIGKILL", (0.1, 3.0)

    def begin(self) -> None:
        self.environment.target.kill()

    def end(self) -> None:
        self.environment.target.start()


class TargetRestarted(TargetKilled):
    name, duration_sec = "target fast restart", (0.1, 3.0)

    def begin(self) -> None:
        self.environment.target.stop("fast")


class TargetSessionsTerminated(Fault):
    name = "target: pg_terminate_backend"

    def begin(self) -> None:
        with suppress(psycopg2.Error):
            ((count,),) = self.environment.target.query(
                "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE application_name LIKE 'dataloader:%'"
            )
            self.detail = f"{count} sessions"


class TargetSlow(Fault):
    name, duration_sec, breaks_sessions = "target slow", (2.0, 5.0), False

    def begin(self) -> None:
        self.environment.target_proxy.slow(self.random.uniform(0.02, 0.25))

    def end(self) -> None:
        self.environment.target_proxy.heal()


class TargetCut(Fault):
    name = "target cut"

    def begin(self) -> None:
        self.detail = f"{self.environment.target_proxy.cut()} connections"


class TargetSilent(TargetSlow):
    """Its connections stay; half of them are forgotten when it is over."""

    name, duration_sec, breaks_sessions = "target black hole", (2.0, 7.0), True

    def begin(self) -> None:
        self.environment.target_proxy.silence()

    def end(self) -> None:
        super().end()
        if self.random.random() < 0.5:
            self.environment.target_proxy.cut()


class TargetOneWay(TargetSilent):
    """It commits, and its answers do not come."""

    name, duration_sec = "target one way", (1.0, 4.0)

    def begin(self) -> None:
        self.environment.target_proxy.block_responses()

    def end(self) -> None:
        self.environment.target_proxy.cut()
        self.environment.target_proxy.heal()


TARGET_FAULTS: tuple[type[Fault], ...] = (
    TargetKilled, TargetRestarted, TargetSessionsTerminated, TargetSlow, TargetCut, TargetSilent, TargetOneWay,
)  # fmt: skip
