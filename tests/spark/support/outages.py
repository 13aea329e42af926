"""A broker that dies and returns after several attempts to connect."""

import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support.broker import BrokerProcess

MISSED = 3  # connections that it does not keep
CONNECTOR = b"levada-spark"  # the client id: others that wait for the broker do not count
TIMEOUT_S = 120.0


class RestartedServer(BrokerProcess):
    """A broker process, with the name of its address that the tests of the connector use."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {"transaction.state.log.num.partitions": "4"})
        self._missed = threading.Event()
        self._returns: threading.Thread | None = None

    def die(self) -> None:
        """Killed now, and back when somebody has tried to connect several times."""
        self._leave(hang_up_on)

    def stand_still(self) -> None:
        """Take connections and send no response from now on; go on when several have given up waiting."""
        self._leave(ignore)

    def _leave(self, meanwhile: Callable[[str, int], None]) -> None:
        self.be_back()
        self.stop(signal.SIGKILL)
        self._missed.clear()
        self._returns = threading.Thread(target=self._return, args=(meanwhile,), name="broker returns")
        self._returns.start()

    def _return(self, meanwhile: Callable[[str, int], None]) -> None:
        meanwhile(self.bootstrap, MISSED)
        self._missed.set()
        self.start()

    def was_missed(self) -> bool:
        """Whether anybody has asked for it since it died."""
        return self._missed.is_set()

    def be_back(self) -> None:
        """Wait until it is; somebody must be there who misses it."""
        if self._returns is not None:
            self._returns.join(TIMEOUT_S)
            assert not self._returns.is_alive(), "no client has missed the broker"

    def __exit__(self, *why: object) -> None:
        self.be_back()
        super().__exit__(*why)


def ignore(address: str, callers: int) -> None:
    """Take connections at an address and say nothing, until so many have given up waiting."""
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))) as listening:
        listening.settimeout(TIMEOUT_S)
        while callers:
            caller, _ = listening.accept()
            caller.settimeout(TIMEOUT_S)
            with caller, caller.makefile("rb") as received:
                callers -= CONNECTOR in received.read()


def hang_up_on(address: str, callers: int) -> None:
    """Take connections at an address and close each, until the connector has called so often."""
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))) as listening:
        listening.settimeout(TIMEOUT_S)
        while callers:
            caller, _ = listening.accept()
            with caller:
                callers -= CONNECTOR in caller.recv(1024)
