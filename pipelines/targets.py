"""Where pipelines fetch from and write to, by name. Whoever starts the process fills it in, once, from the settings.

Addresses are not in a job's args, so that a caller of the API cannot send a worker to an address of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

DEFAULT = "default"  # the target of all names that are not named themselves


class NotConfigured(LookupError):
    """A name that the settings do not know."""

    permanent = True  # the same try again would end the same way


@dataclass(frozen=True)
class _Known:
    endpoints: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict, repr=False)
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    otherwise: Callable[[], str] | None = None


class Directory:
    """The places that this process knows."""

    def __init__(self) -> None:
        self._known = _Known()  # replaced whole by configure(), read by every pipeline's thread

    def configure(
        self,
        endpoints: Mapping[str, str],
        targets: Mapping[str, str],
        tokens: Mapping[str, str] | None = None,
        *,
        otherwise: Callable[[], str] | None = None,
    ) -> None:
        """Forget what was known, and know these. `otherwise` gives the database where no target is named."""
        self._known = _Known(dict(endpoints), dict(targets), dict(tokens or {}), otherwise)

    def endpoint(self, name: str, default: str | None = None) -> str:
        """The base URL of a source, without a slash at its end; `NotConfigured` if nobody said where it is."""
        found = self._known.endpoints.get(name, default)
        if found is None:
            raise NotConfigured(
                f"no endpoint {name!r} is known{_among(self._known.endpoints)}; "
                f'name it in DL_ENDPOINTS, such as {{"{name}": "https://host/path"}}'
            )
        return found.rstrip("/")

    def token(self, name: str) -> str | None:
        """The bearer token of an endpoint, if it wants one."""
        return self._known.tokens.get(name)

    def authorization(self, name: str) -> dict[str, str]:
        """The header that an endpoint wants; none without a token."""
        token = self.token(name)
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def target(self, name: str) -> str:
        """The DSN of a database: its own, else that of `default`, else the queue's; `NotConfigured` if none."""
        known = self._known
        found = known.targets.get(name) or known.targets.get(DEFAULT)
        if found is not None:
            return found
        if known.otherwise is not None:
            return known.otherwise()
        raise NotConfigured(
            f"no target {name!r} is known{_among(known.targets)}; "
            f'name it in DL_TARGETS, such as {{"{name}": "postgresql://user:password@host/database"}}'
        )


def _among(names: Mapping[str, str]) -> str:
    return f" among {', '.join(sorted(names))}" if names else ""


directory = Directory()
configure = directory.configure
endpoint = directory.endpoint
token = directory.token
authorization = directory.authorization
target = directory.target
