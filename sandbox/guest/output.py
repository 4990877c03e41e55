"""Bounded memory for a stream of unknown length: the head and the tail are kept, the middle is counted."""


class HeadTail:
    """Keeps the first and the last half of `keep_bytes` of everything fed to it."""

    def __init__(self, keep_bytes: int) -> None:
        self._head_cap = keep_bytes - keep_bytes // 2
        self._tail_cap = keep_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    @property
    def truncated(self) -> bool:
        """True when bytes of the middle were thrown away."""
        return self.total > self._head_cap + self._tail_cap

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_cap + 4096:
                del self._tail[: len(self._tail) - self._tail_cap]

    def text(self) -> str:
        """What was kept, decoded with replacement; a line in the middle counts the bytes left out."""
        if not self.truncated:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        tail = bytes(self._tail[len(self._tail) - self._tail_cap :])
        omitted = self.total - len(self._head) - len(tail)
        # A cut may fall inside a character: its stray continuation bytes are dropped, not shown as garbage.
        head_text = bytes(self._head).decode("utf-8", "replace").rstrip("\ufffd")
        tail_text = tail.decode("utf-8", "replace").lstrip("\ufffd")
        return f"{head_text}\n... [{omitted} bytes omitted] ...\n{tail_text}"
