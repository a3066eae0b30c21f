"""Texts as tokens: by a tokenizer that the user names, or else a token a byte."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.inputs.given_files import read_given
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError, TraceError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Tokens = NDArray[np.int32]

KEPT_TEXTS = 4096
"""Logs say the same again and again: the tokens of so many texts are kept."""


class Tokenizer:
    """Makes tokens of texts.

    Args:
        path: a `tokenizer.json` as of Hugging Face's `tokenizers`; None for a token a byte of UTF-8.

    Raises TraceError for a file that is none, and where the package is missing.
    """

    def __init__(self, path: Path | None) -> None:
        self._encoder = None if path is None else _encoder(path)
        self._has_texts = False
        self.tokens = lru_cache(KEPT_TEXTS)(self._tokens)
        """The tokens of a text, int32; not to be changed. Cost: O(length), and next to nothing for a text lately given."""

    def _tokens(self, text: str) -> Tokens:
        self._has_texts |= bool(text)
        data = text.encode("utf-8", "backslashreplace")
        if self._encoder is None:
            return np.frombuffer(data, np.uint8).astype(np.int32)
        return np.array(self._encoder.encode(data.decode(), add_special_tokens=False).ids, np.int32)

    @property
    def notes(self) -> tuple[str, ...]:
        """The report's sentences about it; none where there was no text."""
        if not self._has_texts:
            return ()
        if self._encoder is None:
            return ("warning: a token is a byte here, so lengths are some 4 times too large; give --tokenizer tokenizer.json",)
        return (f"a tokenizer of {self._encoder.get_vocab_size():,} tokens; the model's chat template is not applied",)


def _encoder(path: Path) -> Any:
    try:
        package = import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise TraceError(f"{path}: needs tokenizers; run: pip install 'unified-tree[traces]'") from error
    try:
        return package.Tokenizer.from_str(read_given(path).decode())
    except ConfigurationError as error:
        raise TraceError(str(error)) from error
    except Exception as error:  # the package raises bare ones
        raise TraceError(f"{path}: is no tokenizer.json: {printable(str(error))}") from error
