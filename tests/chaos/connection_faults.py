"""Faults of connections: sessions are terminated, and the network is slow, cut or silent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import psycopg2

from tests.chaos.fault import Fault
from tests.support.waiting import eventually


class SessionsTerminated(Fault):
    """pg_terminate_backend of one kind of connection."""

    pattern: ClassVar[str]

    def begin(self) -> None:
        """There may be none just now: after a restart they come back one by one."""
        count = eventually(self._terminate, 10, f"a session of the kind {self.pattern}", interval_sec=0.1)
        self.detail = f"{count} sessions"

    def _terminate(self) -> int:
        with suppress(psycopg2.Error):
            ((count,),) = self.environment.primary.query(
                "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE application_name LIKE %s",
                self.pattern,
            )
            return int(count)
        return 0


class ListenTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: listen", "dataloader-listen:%"


class ClaimTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: claim", "dataloader-claim:%"


class SettleTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: settle", "dataloader-settle:%"


class RenewTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: renew", "dataloader-renew:%"


class ApiTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: API", "dataloader-api"


class TaskSessionsTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: pipelines' own", "dataloader:%"


class NetworkFault(Fault):
    """Something happens to all connections, or to those of one way to the server."""

    def begin(self) -> None:
        world = self.environment
        ways = {"all": world.proxies, "address": [world.address], "multi-host": world.slots}
        self.detail = self.random.choice(["all", "all", "address", "multi-host"])
        self.proxies = [proxy for proxy in ways[self.detail] if proxy is not world.slots[1 - world.slot]]
        for proxy in self.proxies:
            self.apply(proxy)

    apply: Callable[[Any], object]

    def end(self) -> None:
        for proxy in self.proxies:
            proxy.heal()


class NetworkSlow(NetworkFault):
    name, duration_sec, breaks_sessions = "network slow", (2.0, 6.0), False

    def apply(self, proxy: Any) -> None:
        proxy.slow(self.random.uniform(0.02, 0.25))


class NetworkCut(NetworkFault):
    name = "network cut"

    def apply(self, proxy: Any) -> None:
        proxy.cut()


class NetworkHalfOpen(NetworkFault):
    name, duration_sec = "network half open", (2.0, 7.0)

    def apply(self, proxy: Any) -> None:
        proxy.half_open()

    def end(self) -> None:
        for proxy in self.proxies:
            proxy.cut_half_open()


class NetworkSilent(NetworkFault):
    name, duration_sec = "network black hole", (2.0, 7.0)

    def apply(self, proxy: Any) -> None:
        proxy.silence()

    def end(self) -> None:
        super().end()
        if self.random.random() < 0.5:  # a firewall that has forgotten its connections
            for proxy in self.proxies:
                proxy.cut()


class NetworkOneWay(NetworkSilent):
    name, duration_sec = "network one way", (2.0, 5.0)

    def apply(self, proxy: Any) -> None:
        proxy.block_responses()


class NetworkRefused(NetworkFault):
    name, duration_sec = "network refuses", (2.0, 5.0)

    def apply(self, proxy: Any) -> None:
        proxy.refuse()
        proxy.cut()


class NetworkHangsUp(NetworkRefused):
    name = "network hangs up"

    def apply(self, proxy: Any) -> None:
        proxy.hang_up()
        proxy.cut()


CONNECTION_FAULTS: tuple[type[Fault], ...] = (
    ListenTerminated, ClaimTerminated, SettleTerminated, RenewTerminated, ApiTerminated, TaskSessionsTerminated,
    NetworkSlow, NetworkCut, NetworkHalfOpen, NetworkSilent, NetworkOneWay, NetworkRefused, NetworkHangsUp,
)  # fmt: skip
