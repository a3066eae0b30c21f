"""Asking a page that is somewhere: an address may be anything, and so may what answers there."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from unified_tree.controllers.shapes import record, text
from unified_tree.inputs.given_files import NotJsonError, parse_json
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1 << 26
MAX_REFUSAL_BYTES = 1 << 12
REFUSAL = record({"error": text})


def answer_of(address: str, path: str, token: str | None = None) -> bytes:
    """What a page says.

    Args:
        address: that `Inspector.open` gave, maybe with a token.
        path: what to ask for.
        token: in place of the address's.

    Raises ConfigurationError, with the address, for one that is none, and where nothing answers, or too much; for a page that
    refuses with its reason.
    """
    try:
        url = urlsplit(address)
        given = token or dict(parse_qsl(url.query)).get("token")
        asked = urlunsplit((url.scheme, url.netloc, path, "", ""))
        headers = {} if given is None else {"Authorization": f"Bearer {quote(given, errors='replace')}"}
        with urllib.request.urlopen(urllib.request.Request(asked, headers=headers), timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(MAX_ANSWER_BYTES + 1)
    except HTTPError as error:
        raise ConfigurationError(f"{printable(address)}: {_refusal(error)}") from error
    except (OSError, ValueError, HTTPException) as error:
        raise ConfigurationError(f"{printable(address)}: no inspector answers there: {error}") from error
    if len(content) > MAX_ANSWER_BYTES:
        raise ConfigurationError(f"{printable(address)}: no inspector answers there, but something that does not end")
    return content


def _refusal(error: HTTPError) -> str:
    """The reason that an inspector gives for a refusal; for another answer, that no inspector answers."""
    try:
        said: str = REFUSAL(parse_json(error.read(MAX_REFUSAL_BYTES)), "it")["error"]
        return said
    except (OSError, HTTPException, NotJsonError, ConfigurationError):
        return f"no inspector answers there: {error}"
