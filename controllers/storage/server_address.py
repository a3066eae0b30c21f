"""Server addresses in settings and in replies of other servers."""

from __future__ import annotations

import ipaddress
import re
import socket

from unified_tree.terms.errors import StorageError

_HOST = re.compile(r"[^\s/\\@?#%,:\[\]]+")
_IPV6 = re.compile(r"\[([0-9A-Fa-f:.]+)\]")
_PORT = re.compile(r"[0-9]{1,5}")


def host_and_port(text: str) -> tuple[str, int]:
    """The two of "host:port", "[::1]:port" included. Raises ValueError for what can be no such address: a URL, a user's name
    before the host, white space, an IPv6 address without its brackets.

    >>> host_and_port("[::1]:6379")
    ('::1', 6379)
    """
    host, _, port = text.rpartition(":")
    bracketed = _IPV6.fullmatch(host)
    if bracketed:
        host = str(ipaddress.IPv6Address(bracketed[1]))
    elif not _HOST.fullmatch(host) or not host.isprintable():
        raise ValueError(f"{text!r} is not host:port")
    host.encode("idna")  # what cannot be a name would otherwise be an error of another kind, and later
    if not _PORT.fullmatch(port) or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def check_listens(engine: str, server: str, address: str, timeout_s: float, advice: str = "check its address") -> None:
    """Raise StorageError if nothing listens, before creating a client that would hang or abort the process."""
    try:
        socket.create_connection(host_and_port(address), timeout=timeout_s).close()
    except OSError as error:
        raise StorageError(f"{engine}: no {server} at {address} ({error}): {advice}") from error


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and nobody else can reach it: `localhost`, or an address of the loopback. No name is
    looked up.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "")]
    [True, True, True, False, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
