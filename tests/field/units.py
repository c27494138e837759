"""The units of deploy/systemd under a real systemd, as a place of the first hour."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from tests.field.deployment import Deployment
from tests.field.ground import Ground
from tests.field.places import Unavailable, place
from tests.support.machine import Machine, booted_machine, install_units, missing_for_machine
from tests.support.processes import Process
from tests.support.waiting import eventually

STATE = "/var/lib/dataloader"
# nsenter does not pass a TERM on to the command that it runs in the machine's own process numbers.
FORWARD_TERM = """
"$@" & nsenter=$!
trap 'kill -TERM $(cat /proc/$nsenter/task/$nsenter/children)' TERM
wait $nsenter  # until a signal, or its end
wait $nsenter
exit $?
"""
UNITS = ("dataloader-api", "dataloader-worker@1")


class UnitsProcess(Process):
    """The API and a worker as units, used as one process is."""

    def __init__(self, machine: Machine, port: int) -> None:
        self._machine, self._port = machine, port
        machine.run("systemctl", "restart", *UNITS)

    @property
    def text(self) -> str:
        return "".join(map(self._machine.journal, UNITS))

    @property
    def exit_code(self) -> int | None:
        states = {self._machine.show(unit, "ActiveState") for unit in UNITS}
        if states & {"active", "activating", "deactivating"}:
            return None
        return int(any(self._machine.show(unit, "Result") != "success" for unit in UNITS))

    def wait_for_line(self, text: str, timeout: float = 60) -> str:
        """The journal has the lines of earlier starts, too, so that it is the port that counts."""
        line = super().wait_for_line({"is ready": "service.ready"}[text], timeout)  # units write JSON
        self.wait_for_port(self._port, timeout)
        return line

    def signal(self, signal_number: signal.Signals) -> None:
        assert signal_number is signal.SIGTERM
        self._machine.run("systemctl", "stop", *UNITS)

    def wait(self, timeout: float = 60) -> int:
        eventually(lambda: self.exit_code is not None, timeout, lambda: self.text)
        return self.exit_code or 0

    def kill(self) -> None:
        self._machine.run("systemctl", "kill", "--signal=KILL", *UNITS, check=False)
        self._machine.run("systemctl", "stop", *UNITS, check=False)


@dataclass(frozen=True)
class UnitsDeployment(Deployment):
    machine: Machine | None = None

    def start(self, *arguments: str) -> Process:
        if arguments == ("serve",):
            assert self.machine is not None
            return UnitsProcess(self.machine, self.port)
        return super().start(*arguments)


@place("systemd", "the units of `deploy/` under a real systemd")
def units(ground: Ground) -> Iterator[Deployment]:
    if missing := missing_for_machine():
        raise Unavailable(missing)
    ground.wheels.former()
    ordinary = ground.deployment(ground.owned_database(), ground.owned_database())
    folder = Path(tempfile.mkdtemp(prefix="field-machine-", dir=ground.run_folder))
    with booted_machine(folder, shared=[ordinary.folder, ground.wheels.folder]) as machine:
        given = {one.name: getattr(ordinary, one.name) for one in fields(ordinary)}
        as_user = ["setpriv", "--reuid=dataloader", "--regid=dataloader", "--init-groups"]
        prefix = ["bash", "-c", FORWARD_TERM, "bash", *machine.enter(ordinary.folder), *as_user]
        programs = Path("/opt/dataloader/bin")
        given |= {"command": [programs / "dataloader"], "interpreter": programs / "python", "prefix": prefix}
        given["api_has_workers"] = False
        deployment = UnitsDeployment(**given, machine=machine)
        # Units see neither /tmp nor /dev/shm of others: the user's project lies in the folder of their state.
        machine.run("mkdir", "-p", STATE)
        machine.run("mount", "--bind", deployment.folder, STATE)
        environment = {
            name: text.replace(str(deployment.folder), STATE) for name, text in deployment.environment().items()
        }
        install_units(machine, environment)
        machine.run("systemctl", "disable", "--now", "dataloader-worker@2")
        machine.run("chown", "-R", "dataloader:dataloader", STATE)
        yield deployment
