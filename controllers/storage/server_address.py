"""Where a server listens, as settings say it and as other servers report it."""

from __future__ import annotations


def host_and_port(text: str) -> tuple[str, int]:
    """The two of "host:port", "[::1]:port" included. Raises ValueError for what can be no such address.

    >>> host_and_port("[::1]:6379")
    ('::1', 6379)
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    host.encode("idna")  # what cannot be a name would otherwise be an error of another kind, and later
    if not host or not host.isprintable() or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)
