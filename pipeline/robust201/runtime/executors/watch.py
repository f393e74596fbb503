"""Whether the processes that an executor depends on still answer: asked from a thread of its own, over TCP."""

import socket
import threading
import time
from collections.abc import Callable, Mapping

PROBE_SECONDS = 1.0
_CONNECT_SECONDS = 5.0

Address = tuple[str, int]


class Watch:
    """Connects to some addresses, given by a name for messages, again and again until it is stopped.

    A process that is gone leaves nobody who would say so: its port refuses, or its machine is silent, for longer than
    our patience.
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
        self._answered = dict.fromkeys(self._addresses, clock())
        self._asked = clock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="watch of Ray", daemon=True)
        self._thread.start()

    def silent(self) -> str | None:
        """Name a process that has not answered for longer than the patience; None while all do.

        Silence counts up to the last question only: a watch that was itself stopped for a while blames nobody.
        """
        for name, answered in self._answered.items():
            if self._asked - answered > self._patience:
                return name
        return None

    def unanswered(self) -> str | None:
        """Ask now, and name the first process that does not answer; None if all do."""
        return next((name for name, address in self._addresses.items() if not answers(address)), None)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=_CONNECT_SECONDS)

    def _ask_on(self) -> None:
        while not self._stopped.wait(self._interval):
            for name, address in self._addresses.items():
                before = self._clock()
                if before - self._asked > self._patience:
                    # This process stood still (SIGSTOP, a suspended machine), not the others.
                    self._answered = dict.fromkeys(self._addresses, before)
                if answers(address):
                    self._answered[name] = self._clock()
                self._asked = self._clock()


def answers(address: Address) -> bool:
    """Whether somebody accepts a connection at an address within a few seconds."""
    try:
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def parse_address(text: str) -> Address:
    """Split ``host:port``, the host being a name, an IPv4 or a bracketed IPv6 address."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
