"""The sources and databases that pipelines use, by name. The process configures them once from its settings.

Addresses are not in a job's args, so that a caller of the API cannot make a worker connect to an address of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

DEFAULT = "default"  # the target of names that are not configured


class NotConfigured(LookupError):
    """The settings have no such name."""

    permanent = True  # a retry would fail again


class Locations:
    """Endpoints, targets and tokens of this process."""

    def __init__(self) -> None:
        self.configure({}, {})

    def configure(
        self,
        endpoints: Mapping[str, str],
        targets: Mapping[str, str],
        tokens: Mapping[str, str] | None = None,
        *,
        fallback_dsn: Callable[[], str] | None = None,
    ) -> None:
        """Replace all locations. `fallback_dsn` returns the queue's database, for targets that are not configured."""
        self._endpoints, self._targets, self._tokens = dict(endpoints), dict(targets), dict(tokens or {})
        self._fallback_dsn = fallback_dsn

    def endpoint(self, name: str, default: str | None = None) -> str:
        """Return the base URL of a source, without a slash at its end. Raises NotConfigured."""
        url = self._endpoints.get(name, default)
        if url is None:
            raise NotConfigured(
                f"no endpoint {name!r} is known{_format_names(self._endpoints)}; "
                f'name it in DL_ENDPOINTS, such as {{"{name}": "https://host/path"}}'
            )
        return url.rstrip("/")

    def authorization(self, name: str) -> dict[str, str]:
        """Return the Authorization header of an endpoint; empty without a token."""
        return {"Authorization": f"Bearer {self._tokens[name]}"} if name in self._tokens else {}

    def target(self, name: str) -> str:
        """Return the DSN of a database: its own, else that of `default`, else the queue's. Raises NotConfigured."""
        dsn = self._targets.get(name) or self._targets.get(DEFAULT)
        if dsn is not None:
            return dsn
        if self._fallback_dsn is not None:
            return self._fallback_dsn()
        raise NotConfigured(
            f"no target {name!r} is known{_format_names(self._targets)}; "
            f'name it in DL_TARGETS, such as {{"{name}": "postgresql://user:password@host/database"}}'
        )


def _format_names(names: Mapping[str, str]) -> str:
    return f" among {', '.join(sorted(names))}" if names else ""


_locations = Locations()
configure = _locations.configure
endpoint = _locations.endpoint
authorization = _locations.authorization
target = _locations.target
