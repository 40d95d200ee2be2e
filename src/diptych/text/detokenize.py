"""Token bytes to text, one token after the other, never half a character.

Looks at each byte once, whatever the length of the output.
"""

import codecs


class Detokenizer:
    """Holds back the bytes of a character until it is complete."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.is_inside = False
        """A character is not complete yet."""

    def push(self, token: bytes) -> str:
        """Text that is certain now. An invalid sequence becomes one U+FFFD."""
        if token.isascii() and not self.is_inside:
            return token.decode("ascii")
        text = self._decoder.decode(token)
        self.is_inside = bool(self._decoder.getstate()[0])
        return text

    def finish(self, *, cut: bool = False) -> str:
        """Text still held: U+FFFD for an incomplete character, nothing if the output was `cut`."""
        self.is_inside = False
        if cut:
            self._decoder.reset()
            return ""
        return self._decoder.decode(b"", final=True)
