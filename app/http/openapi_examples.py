"""Examples of requests and responses, made from their schemas, so that they cannot differ from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLE_REQUEST_ID = "0f4bb2a7-6d0e-4d4e-9a53-2f1f5c8e7b10"
_ID = "65dd4ef9-ea53-4e2a-8808-735075a53973"
_TIME = "2030-01-31T05:00:00.250000Z"
_BY_FORMAT = {"date-time": _TIME, "date": "2030-01-31", "uuid": _ID, "uri": "https://hooks.example.com/dataloader"}
_BY_TYPE: dict[str, Any] = {"string": "…", "integer": 1, "number": 1.5, "boolean": False, "object": {}, "null": None}
# The value of every field with this name whose type allows it. A nullable text that is not here is null.
_BY_NAME: dict[str, Any] = {
    "action": "trigger_job",
    "actor": "reports",
    "address": "10.0.0.7",
    "args": {"day": "2030-01-30"},
    "cancel_requested": False,
    "crashes": 0,
    "dataset": "warehouse.rates",
    "description": "Loads one day.",
    "duration_ms": None,
    "error": None,
    "errors": [],
    "event": "job.failed",
    "expires_at": None,
    "finished_at": None,
    "kind": None,
    "lease_ttl_sec": 60,
    "lock_key": "load_day",
    "max_attempts": 5,
    "name": "load_day",
    "next": None,
    "partition_key": "2030-01-30",
    "priority": 100,
    "progress": {"step": 2, "steps": 3},
    "queue": "etl.default",
    "request_id": EXAMPLE_REQUEST_ID,
    "result": None,
    "status": "running",
    "subject": "job",
    "subject_id": _ID,
    "task": "load_day",
    "timezone": "UTC",
    "url": _BY_FORMAT["uri"],
    "version": "0.3.0",
    "via": "key",
    "warnings": [],
    "worker": "etl-1",
    "zone": "UTC",
}
# Requests, by schema; those that are not here have examples at their fields.
_REQUESTS: dict[str, Any] = {
    "AlertRuleEdit": {"threshold": 0.2, "window_sec": 7200},
    "BackfillChange": {"concurrency": 4},
    "BreakerSetting": {"failures": 5, "window_sec": 600, "resume_sec": 300},
    "BulkCountRequest": {"action": "cancel", "filter": {"queue": "etl.default", "status": "queued"}},
    "BulkRequest": {"action": "cancel", "filter": {"queue": "etl.default", "status": "queued"}, "expected": 12},
    "JobClone": {"args": {"day": "2030-01-31"}, "idempotency_key": "load_day-2030-01-31"},
    "JobEditRequest": {"priority": 10, "available_at": "2030-01-31T08:00:00+03:00"},
    "LimitSetting": {"concurrency": 4, "rate": 60, "per_sec": 60, "note": "what the source allows"},
    "NewAlertRule": {"name": "loads fail", "kind": "failure_rate", "threshold": 0.2, "task": "load_day"},
    "NewBackfill": {"task": "load_day", "slices": {"from": "2030-01-01", "to": "2030-01-31"}, "concurrency": 4},
    "NewSchedule": {"name": "daily load", "task": "load_day", "expression": "0 6 * * *", "zone": "Europe/Moscow"},
    "NewWebhook": {
        "url": _BY_FORMAT["uri"],
        "events": ["job.failed", "job.lost"],
        "task": "load_day",
    },
    "PauseRequest": {"reason": "the source is down"},
    "QueueSettingsEdit": {"queue": "etl.default", "concurrency": 8},
    "ResetRequest": {"fields": ["expression"]},
    "RunRequest": {"at": "2030-01-31T06:00:00Z", "again": True},
    "ScheduleChange": {"expression": "0 7 * * *"},
    "SecretRotation": {"overlap_sec": 3600},
    "SlicesToRun": {"keys": ["2030-01-30", "2030-01-31"]},
    "WebhookEdit": {"active": False},
    "WholeSchedule": {"task": "load_day", "kind": "interval", "expression": "600"},
}


def make_example(name: str, components: Mapping[str, Any], *, is_request: bool) -> Any:
    """Return an example of a component: of a request with the fields that it must have or that name an example."""
    if is_request and name in _REQUESTS:
        return _REQUESTS[name]
    return _Examples(components, is_request=is_request).of_schema(name, {"$ref": name}, ())


class _Examples:
    def __init__(self, components: Mapping[str, Any], *, is_request: bool) -> None:
        self._components, self._is_request = components, is_request

    def of_schema(self, field: str, schema: Mapping[str, Any], parents: tuple[str, ...]) -> Any:
        """`parents` are the components around this one: a tree ends where it would begin again."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.of_schema(field, self._components[name], (*parents, name))
        if "examples" in schema:
            return schema["examples"][0]
        if field in _BY_NAME and self._allows(schema, _BY_NAME[field]):
            return _BY_NAME[field]
        if "properties" in schema:
            return self._of_object(schema, parents)
        if "anyOf" in schema:
            return self._of_choice(field, schema["anyOf"], parents)
        if schema.get("type") == "array":
            return self._of_array(field, schema, parents)
        return self._of_value(schema)

    def _of_value(self, schema: Mapping[str, Any]) -> Any:
        if "const" in schema or "enum" in schema:
            return schema["const"] if "const" in schema else schema["enum"][0]
        if "format" in schema:
            return _BY_FORMAT[schema["format"]]
        if schema.get("default") is not None:
            return schema["default"]
        return max(schema["minimum"], 1) if "minimum" in schema else _BY_TYPE[schema.get("type", "object")]

    def _of_choice(self, field: str, choices: list[Mapping[str, Any]], parents: tuple[str, ...]) -> Any:
        possible = [choice for choice in choices if not self._is_recursive(choice, parents)]
        is_unnamed_text = {"type": "null"} in choices and set(possible[0]) <= {"type", "pattern", "maxLength"}
        return (
            None if is_unnamed_text and possible[0]["type"] == "string" else self.of_schema(field, possible[0], parents)
        )

    def _of_object(self, schema: Mapping[str, Any], parents: tuple[str, ...]) -> dict[str, Any]:
        required = schema.get("required", ())
        return {
            name: self.of_schema(name, field, parents)
            for name, field in schema["properties"].items()
            if not self._is_request or name in required or "examples" in field
        }

    def _of_array(self, field: str, schema: Mapping[str, Any], parents: tuple[str, ...]) -> list[Any]:
        items = schema.get("prefixItems") or [schema.get("items", {})]
        if any(self._is_recursive(item, parents) for item in items):
            return []
        return [self.of_schema(field.removesuffix("s"), item, parents) for item in items]

    def _is_recursive(self, schema: Mapping[str, Any], parents: tuple[str, ...]) -> bool:
        return schema.get("$ref", "").rpartition("/")[2] in parents

    def _allows(self, schema: Mapping[str, Any], value: Any) -> bool:
        """Whether the schema allows a value, by its type and list of values."""
        if "$ref" in schema:
            return self._allows(self._components[schema["$ref"].rpartition("/")[2]], value)
        if "anyOf" in schema:
            return any(self._allows(choice, value) for choice in schema["anyOf"])
        if "enum" in schema or "const" in schema:
            return value in schema.get("enum", (schema.get("const"),))
        types = {str: "string", bool: "boolean", int: "integer", dict: "object", list: "array", type(None): "null"}
        return schema.get("type") == types[type(value)] and "properties" not in schema
