"""Which Ray head is talked to, and with which token: whoever reaches a head that asks for none runs code on it."""

import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from robust201.core.errors import ConfigError
from robust201.core.files import MAX_STATE_BYTES, read_text

_CONNECT_SECONDS = 10.0
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Access:
    """A Ray head's address and the token for it, checked."""

    address: str
    token: str | None

    @property
    def is_loopback(self) -> bool:
        """Whether the head, or the near end of a tunnel to it, is on this machine."""
        host = urlsplit(self.address).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def is_readable_on_the_way(self) -> bool:
        """Whether a token would cross a network in plain text."""
        return self.token is not None and not self.is_loopback and self.address.startswith("http:")

    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def check_reachable(self) -> None:
        """See that something listens at the address, as Ray's client would wait minutes for it."""
        parts = urlsplit(self.address)
        host, scheme = parts.hostname or "", parts.scheme
        if scheme in getproxies() and not proxy_bypass(host):
            return  # only the proxy is reached from here, and it answers for the head
        try:
            with socket.create_connection((host, parts.port or _PORTS[scheme]), timeout=_CONNECT_SECONDS):
                pass
        except OSError as error:
            raise ConfigError(
                f"Connecting failed for {self.address}: expected a Ray head, got {error.strerror or error}. "
                "Start the cluster, open the tunnel (ray dashboard CLUSTER.yaml), or name the head by --address."
            ) from error


def token_file() -> Path:
    """The file that Ray reads the token from where the environment does not hold it."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(named).expanduser() if named else Path.home() / ".ray" / "auth_token"


def find_token() -> str | None:
    """Find the token where Ray looks for it: RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH, ``~/.ray/auth_token``.

    Source: Ray 2.60, "Token Authentication", token sources and precedence.

    Raises:
        ConfigError: the file cannot be read, holds no token, or is not there though RAY_AUTH_TOKEN_PATH names it; or
            what it or the variable holds cannot be a token.
    """
    token = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if token:
        if not _is_token(token):
            raise ConfigError(
                "Reading the token failed for RAY_AUTH_TOKEN: expected one line of printable ASCII characters, got "
                "others among them. Correct the variable, or unset it to use ~/.ray/auth_token."
            )
        return token
    named, path = os.environ.get("RAY_AUTH_TOKEN_PATH"), token_file()
    try:
        token = read_text(path, MAX_STATE_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not named:
            return None
        raise _bad_token_file(path, str(getattr(error, "strerror", None) or error)) from error
    if not token:
        raise _bad_token_file(path, "an empty file")
    if not _is_token(token):
        raise _bad_token_file(path, "something else than one line of printable ASCII characters")
    return token


def _is_token(text: str) -> bool:
    """Whether a text can be sent in the header of a request."""
    return text.isascii() and text.isprintable()


def _bad_token_file(path: Path, got: str) -> ConfigError:
    if os.environ.get("RAY_AUTH_TOKEN_PATH"):
        what, advice = (
            "the file that RAY_AUTH_TOKEN_PATH names",
            "Correct the variable, or unset it to use ~/.ray/auth_token",
        )
    else:
        what, advice = "a file with a token", "Delete it, and make another: (umask 077; ray get-auth-token --generate)"
    return ConfigError(f"Reading the token failed for {path}: expected {what}, got {got}. {advice}.")


def check_access(address: str, token: str | None, *, insecure: bool = False) -> Access:
    """Hold an address and a token to what is safe to talk to.

    Raises:
        ConfigError: no HTTP address (Ray's client would import a module that another scheme names), or one off this
            machine without a token.
    """
    parts = urlsplit(address)
    try:
        well_formed = parts.scheme in _PORTS and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:  # the port is no number
        well_formed = False
    if not well_formed or re.search(r"\s", address):
        raise ConfigError(
            f"Reading the address failed for {address}: expected http://HOST:8265 or https://HOST, got something else. "
            "Name the address of the head's dashboard."
        )
    access = Access(address.rstrip("/"), token)
    if token is None and not access.is_loopback and not insecure:
        raise ConfigError(
            f"Submitting failed for {access.address}: expected a token for a machine other than this one, got none. "
            "Start the cluster with RAY_AUTH_MODE=token and put its token into ~/.ray/auth_token or RAY_AUTH_TOKEN "
            "(docs/ray.md), or say --insecure."
        )
    return access
