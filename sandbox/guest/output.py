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
        head = _without_cut_end(bytes(self._head))
        tail = _without_cut_start(bytes(self._tail[len(self._tail) - self._tail_cap :]))
        omitted = self.total - len(head) - len(tail)
        return (
            f"{head.decode('utf-8', 'replace')}\n... [{omitted} bytes omitted] ...\n{tail.decode('utf-8', 'replace')}"
        )


def _without_cut_end(head: bytes) -> bytes:
    """Drop a last character that the cut left without its end."""
    for size in range(1, min(4, len(head) + 1)):
        lead = head[-size]
        if lead >= 0xC0:  # the first byte says how long the character is
            needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return head[:-size] if size < needed else head
        if lead < 0x80:
            break
    return head


def _without_cut_start(tail: bytes) -> bytes:
    """Drop the bytes of a first character that the cut left without its start."""
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    return tail[start:]
