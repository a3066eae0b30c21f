"""The tokens that a lease knows: those of its prompt, and those that were committed behind it."""

from __future__ import annotations

from unified_tree.declare.keys import Key


class LeaseTokens:
    """A key that grows: adding to it costs what is added. No id of it is negative: those of the prompt were checked, or matched
    what the tree has, and those added to it were checked.

    Attributes:
        namespace, bigram: of the prompt's key.
        length: how many elements are known.
    """

    __slots__ = ("_output", "_prompt", "_width", "bigram", "length", "namespace")

    def __init__(self, prompt: Key) -> None:
        self.namespace = prompt.namespace
        self.bigram = prompt.bigram
        self.length = prompt.length
        self._prompt = prompt
        self._width = prompt.width_bytes
        self._output = bytearray()  # the elements behind the prompt's

    def key(self, end: int, begin: int = 0) -> Key:
        """The first `end` elements, or their tail from `begin` on. Cost: one copy of them; none of the prompt's first ones."""
        prompt, width, data = self._prompt, self._width, b""
        whole: int = prompt.length
        if end <= whole and not begin:
            return prompt.prefix(end)
        is_checked = True
        if begin < whole:
            data = bytes(prompt.data[begin * width : min(end, whole) * width])
            is_checked = isinstance(prompt.data, bytes)  # else its caller may have changed it
        if end > whole:
            data += self._output[max(0, begin - whole) * width : (end - whole) * width]
        return Key.from_elements(data, self.namespace, bigram=self.bigram, begin=begin, is_checked=is_checked)

    def agree(self, piece: Key) -> bool:
        """Whether the elements of a tail are those that are known, as far as they are. Cost: one comparison of them."""
        data, width, begin = piece.data, self._width, piece.begin
        assert isinstance(data, bytes), "a piece is copied when it is made"
        whole, end = self._prompt.length, min(piece.length, self.length)
        middle = min(max(begin, whole), end)
        prompt = memoryview(self._prompt.data)[begin * width : middle * width]
        output = memoryview(self._output)[(middle - whole) * width : (end - whole) * width] if middle < end else b""
        return data.startswith(prompt) and data.startswith(output, max(0, middle - begin) * width)

    def extend(self, piece: Key) -> None:
        """Add what a tail, which agrees, has behind the known elements."""
        if piece.length > self.length:
            self._output += memoryview(piece.data)[(self.length - piece.begin) * self._width :]
            self.length = piece.length

    def cut(self, length: int) -> None:
        """Forget the elements behind the prompt from `length` on."""
        length = max(length, self._prompt.length)
        if length < self.length:
            del self._output[(length - self._prompt.length) * self._width :]
            self.length = length
