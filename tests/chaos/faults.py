"""The faults of a campaign, by name."""

from __future__ import annotations

from tests.chaos.connection_faults import CONNECTION_FAULTS
from tests.chaos.process_faults import PROCESS_FAULTS
from tests.chaos.server_faults import SERVER_FAULTS
from tests.chaos.target_faults import TARGET_FAULTS
from tests.chaos.transaction_faults import TRANSACTION_FAULTS

FAULTS = {
    fault.name: fault
    for fault in (*PROCESS_FAULTS, *SERVER_FAULTS, *CONNECTION_FAULTS, *TRANSACTION_FAULTS, *TARGET_FAULTS)
}
