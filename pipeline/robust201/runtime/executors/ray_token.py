"""The token of a Ray that a run starts for itself: in no file, and gone with the run."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled, without types

_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@contextmanager
def own_token() -> Iterator[None]:
    """Let a Ray that is started meanwhile ask for a token, a new one unless the user gave one or turned tokens off.

    Its head listens on all addresses of the machine. Ray 2.60 makes a token by itself, but keeps it in the user's home,
    in a file that all users of the machine can read and that clusters then use; 2.56 asks for none.
    """
    before = {name: os.environ.get(name) for name in _TOKEN_VARIABLES}
    if before["RAY_AUTH_MODE"] is None:
        os.environ["RAY_AUTH_MODE"] = "token"
    if before["RAY_AUTH_TOKEN"] is None and before["RAY_AUTH_TOKEN_PATH"] is None:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    read_token_again()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        read_token_again()


def read_token_again() -> None:
    """Let Ray in this process, which reads mode and token once, take them from the environment again."""
    Config.initialize("")  # as ray._private.authentication.authentication_token_setup does
    AuthenticationTokenLoader.instance().reset_cache()
