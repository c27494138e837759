"""The sources and databases that pipelines use, by name. The process configures them once from its settings.

Addresses are not in a job's args, so that a caller of the API cannot make a worker connect to an address of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

DEFAULT = "default"  # the target of names that are not configured


class NotConfigured(LookupError):
    """The settings have no such name."""

    permanent = True  # a retry would fail again


@dataclass(frozen=True)
class _ConfiguredLocations:
    endpoints: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict, repr=False)
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    fallback_dsn: Callable[[], str] | None = None


class Locations:
    """Endpoints, targets and tokens of this process."""

    def __init__(self) -> None:
        self._configured = _ConfiguredLocations()  # replaced whole; read by all threads

    def configure(
        self,
        endpoints: Mapping[str, str],
        targets: Mapping[str, str],
        tokens: Mapping[str, str] | None = None,
        *,
        fallback_dsn: Callable[[], str] | None = None,
    ) -> None:
        """Replace all locations. `fallback_dsn` returns the queue's database, for targets that are not configured."""
        self._configured = _ConfiguredLocations(dict(endpoints), dict(targets), dict(tokens or {}), fallback_dsn)

    def endpoint(self, name: str, default: str | None = None) -> str:
        """Return the base URL of a source, without a slash at its end. Raises NotConfigured."""
        url = self._configured.endpoints.get(name, default)
        if url is None:
            raise NotConfigured(
                f"no endpoint {name!r} is known{_format_names(self._configured.endpoints)}; "
                f'name it in DL_ENDPOINTS, such as {{"{name}": "https://host/path"}}'
            )
        return url.rstrip("/")

    def token(self, name: str) -> str | None:
        """Return the bearer token of an endpoint, or None."""
        return self._configured.tokens.get(name)

    def authorization(self, name: str) -> dict[str, str]:
        """Return the Authorization header of an endpoint; empty without a token."""
        token = self.token(name)
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def target(self, name: str) -> str:
        """Return the DSN of a database: its own, else that of `default`, else the queue's. Raises NotConfigured."""
        configured = self._configured
        dsn = configured.targets.get(name) or configured.targets.get(DEFAULT)
        if dsn is not None:
            return dsn
        if configured.fallback_dsn is not None:
            return configured.fallback_dsn()
        raise NotConfigured(
            f"no target {name!r} is known{_format_names(configured.targets)}; "
            f'name it in DL_TARGETS, such as {{"{name}": "postgresql://user:password@host/database"}}'
        )


def _format_names(names: Mapping[str, str]) -> str:
    return f" among {', '.join(sorted(names))}" if names else ""


locations = Locations()
configure = locations.configure
endpoint = locations.endpoint
token = locations.token
authorization = locations.authorization
target = locations.target
