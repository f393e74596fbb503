"""Address and token of a Ray head, the server that accepts jobs for a cluster.

Anyone who reaches a head without token authentication can run code on it.
"""

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

_CONNECT_TIMEOUT_SECONDS = 10.0
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Access:
    """The address of a Ray head, which `check_access` has checked, and the token for it."""

    address: str
    token: str | None

    @property
    def is_loopback(self) -> bool:
        """Whether the head, or the local end of a tunnel to it, is on this machine."""
        host = urlsplit(self.address).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def sends_token_in_plain_text(self) -> bool:
        """Whether the token crosses a network unencrypted."""
        return self.token is not None and not self.is_loopback and self.address.startswith("http:")

    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def check_reachable(self) -> None:
        """Check that a server listens at the address; Ray's client would wait for minutes."""
        url = urlsplit(self.address)
        host, scheme = url.hostname or "", url.scheme
        if scheme in getproxies() and not proxy_bypass(host):
            return  # only the proxy can be reached from here, and it accepts any connection
        try:
            with socket.create_connection((host, url.port or _PORTS[scheme]), timeout=_CONNECT_TIMEOUT_SECONDS):
                pass
        except OSError as error:
            raise ConfigError(
                f"Connecting failed for {self.address}: no server responds ({error.strerror or error}). Start the "
                "cluster, open the tunnel (ray dashboard CLUSTER.yaml), or set --address to the head's address."
            ) from error


def token_file() -> Path:
    """Return the file from which Ray reads the token if RAY_AUTH_TOKEN is not set."""
    configured_path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(configured_path).expanduser() if configured_path else Path.home() / ".ray" / "auth_token"


def find_token() -> str | None:
    """Return the token that Ray would use: from RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH or ``~/.ray/auth_token``.

    Source: Ray 2.60, "Token Authentication", token sources and precedence.

    Raises:
        ConfigError: the file cannot be read, contains no token, or does not exist although RAY_AUTH_TOKEN_PATH is set;
            or the token in the file or variable is malformed.
    """
    token = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if token:
        if not _is_valid_token(token):
            raise ConfigError(
                "Reading the token failed for RAY_AUTH_TOKEN: expected one line of printable ASCII characters, got "
                "other characters. Correct the variable, or unset it to use ~/.ray/auth_token."
            )
        return token
    is_path_configured, path = bool(os.environ.get("RAY_AUTH_TOKEN_PATH")), token_file()
    try:
        token = read_text(path, MAX_STATE_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not is_path_configured:
            return None
        raise _token_file_error(path, str(getattr(error, "strerror", None) or error)) from error
    if not token:
        raise _token_file_error(path, "an empty file")
    if not _is_valid_token(token):
        raise _token_file_error(path, "more than one line, or characters that are not printable ASCII")
    return token


def _is_valid_token(token: str) -> bool:
    """Return whether a token can be sent in an HTTP header."""
    return token.isascii() and token.isprintable()


def _token_file_error(path: Path, fault: str) -> ConfigError:
    if os.environ.get("RAY_AUTH_TOKEN_PATH"):
        expected = "the token file set in RAY_AUTH_TOKEN_PATH"
        advice = "Correct the variable, or unset it to use ~/.ray/auth_token"
    else:
        expected = "a file with a token"
        advice = "Delete the file and generate another token: (umask 077; ray get-auth-token --generate)"
    return ConfigError(f"Reading the token failed for {path}: expected {expected}, got {fault}. {advice}.")


def check_access(address: str, token: str | None) -> Access:
    """Return access to a head after checking that connecting to its address with this token is safe.

    Raises:
        ConfigError: the address is not HTTP (for another scheme, Ray's client would import a module of that name), or
            the head is on another machine and there is no token.
    """
    url = urlsplit(address)
    try:
        is_well_formed = url.scheme in _PORTS and url.hostname and url.username is None and url.port != 0
    except ValueError:  # the port is not a number
        is_well_formed = False
    if not is_well_formed or re.search(r"\s", address):
        raise ConfigError(
            f"Reading the address failed for {address}: expected http://HOST:8265 or https://HOST. Use the address of "
            "the head's dashboard."
        )
    access = Access(address.rstrip("/"), token)
    if token is None and not access.is_loopback:
        raise ConfigError(
            f"Submitting failed for {access.address}: connecting to another machine requires a token, and none is set. "
            "Start the cluster with RAY_AUTH_MODE=token and put its token into ~/.ray/auth_token or RAY_AUTH_TOKEN "
            "(docs/ray.md)."
        )
    return access
