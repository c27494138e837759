"""What tests have in common: waiting, real processes, databases. The fixtures are in `tests/conftest.py`."""

from tests.support.databases import Databases
from tests.support.private_server import PrivateServer
from tests.support.processes import Process, free_port
from tests.support.waiting import answer_of, eventually

__all__ = ["Databases", "PrivateServer", "Process", "answer_of", "eventually", "free_port"]
