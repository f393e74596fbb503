"""Detects the loss of processes that an executor depends on, by connecting to them over TCP from a thread."""

import socket
import threading
import time
from collections.abc import Callable, Mapping

PROBE_SECONDS = 1.0
_CONNECT_SECONDS = 5.0

Address = tuple[str, int]


class Watch:
    """Connects to the address of each named process at regular intervals, until the watch is stopped.

    Nothing else reports that such a process has died. A process counts as lost once its port has refused connections,
    or its machine has not answered, for `patience_seconds`.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        patience_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_seconds: float = PROBE_SECONDS,
    ) -> None:
        self._addresses = dict(addresses)
        self._patience = patience_seconds
        self._clock = clock
        self._interval = interval_seconds
        self._last_answers = dict.fromkeys(self._addresses, clock())
        self._last_probe = clock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._probe_regularly, name="watch of Ray", daemon=True)
        self._thread.start()

    def find_silent_process(self) -> str | None:
        """Return the name of a process that has not answered for `patience_seconds`; None if there is none.

        Silence is measured up to the last probe only, so nothing is reported if this process itself was suspended.
        """
        for name, last_answer in self._last_answers.items():
            if self._last_probe - last_answer > self._patience:
                return name
        return None

    def probe_all(self) -> str | None:
        """Probe all processes now; return the name of the first process that does not answer, or None."""
        return next((name for name, address in self._addresses.items() if not accepts_connections(address)), None)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=_CONNECT_SECONDS)

    def _probe_regularly(self) -> None:
        while not self._stopped.wait(self._interval):
            for name, address in self._addresses.items():
                now = self._clock()
                if now - self._last_probe > self._patience:
                    # The watching process was suspended (by SIGSTOP or with its machine), so the watched processes may
                    # be alive.
                    self._last_answers = dict.fromkeys(self._addresses, now)
                if accepts_connections(address):
                    self._last_answers[name] = self._clock()
                self._last_probe = self._clock()


def accepts_connections(address: Address) -> bool:
    """Return whether a process accepts a connection at an address within a few seconds."""
    try:
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def parse_address(address: str) -> Address:
    """Parse ``host:port``; the host is a name, an IPv4 address or a bracketed IPv6 address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
