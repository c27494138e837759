"""A typed client of the HTTP API, for programs and for the `dataloader` command. Standard library only.

service = Client("http://127.0.0.1:8081")
triggered = service.trigger(Request(queue="etl.default", task="noop", lock_key="noop"))
for state in service.watch(triggered.job_id):
    print(state.status, state.progress)

DataloaderError
└── ClientError
    ├── ServiceUnavailable    no answer, or "not now", until the patience ran out
    ├── ServiceFault          an answer that no dataloader in order would give
    └── Refused               a problem+json answer: code, detail, errors
        ├── NotFound
        ├── Conflict
        └── NotAllowed        it takes an API key, or another one
"""

from app.client.answers import (
    AuditLine,
    AuditPage,
    JobEvent,
    JobLine,
    JobLogLine,
    JobLogs,
    JobState,
    Request,
    Triggered,
)
from app.client.batch import BatchItem
from app.client.errors import (
    ClientError,
    Conflict,
    FieldError,
    NotAllowed,
    NotFound,
    Refused,
    ServiceFault,
    ServiceUnavailable,
)
from app.client.service import FULL_PAGE, Client
from app.client.streaming import StreamEvent
from app.client.transport import DEFAULT_URL, PATIENCE_SEC, api_key, service_url

__all__ = [
    "DEFAULT_URL",
    "FULL_PAGE",
    "PATIENCE_SEC",
    "AuditLine",
    "AuditPage",
    "BatchItem",
    "Client",
    "ClientError",
    "Conflict",
    "FieldError",
    "JobEvent",
    "JobLine",
    "JobLogLine",
    "JobLogs",
    "JobState",
    "NotAllowed",
    "NotFound",
    "Refused",
    "Request",
    "ServiceFault",
    "ServiceUnavailable",
    "StreamEvent",
    "Triggered",
    "api_key",
    "service_url",
]
