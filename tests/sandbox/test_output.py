"""Head and tail of a stream, by hand."""

import re

import pytest

from sandbox.guest.output import HeadTail


def fed(keep: int, *chunks: bytes) -> HeadTail:
    stream = HeadTail(keep)
    for chunk in chunks:
        stream.feed(chunk)
    return stream


def test_short_output_is_whole() -> None:
    stream = fed(10, b"abc", b"def")
    assert (stream.text(), stream.total, stream.truncated) == ("abcdef", 6, False)


def test_output_of_exactly_the_limit_is_whole() -> None:
    assert fed(4, b"ab", b"cd").text() == "abcd"


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_the_middle_is_cut_and_counted(chunk_size: int) -> None:
    data = b"0123456789" * 10
    stream = fed(10, *(data[at : at + chunk_size] for at in range(0, 100, chunk_size)))
    assert stream.text() == "01234\n... [90 bytes omitted] ...\n56789"
    assert (stream.total, stream.truncated) == (100, True)


def test_a_cut_inside_a_character_leaves_no_garbage() -> None:
    stream = fed(6, "ééé".encode(), b"-" * 20, "ééé".encode())
    assert stream.text() == "é\n... [28 bytes omitted] ...\né"


def test_a_replacement_character_of_the_program_is_no_cut_one() -> None:
    stream = fed(12, "\ufffd\ufffd".encode(), b"-" * 20, "\ufffd\ufffd".encode())
    assert stream.text() == "\ufffd\ufffd\n... [20 bytes omitted] ...\n\ufffd\ufffd"


@pytest.mark.parametrize("text", ["ab", "é", "€", "😀", "a€"])
def test_every_cut_of_a_text_is_text(text: str) -> None:
    data = text.encode() * 20
    for keep in range(1, 14):
        shown = fed(keep, data).text()
        head, omitted, tail = re.fullmatch(r"(.*)\n\.\.\. \[(\d+) bytes omitted] \.\.\.\n(.*)", shown).groups()
        assert "\ufffd" not in shown
        assert len(head.encode()) + int(omitted) + len(tail.encode()) == len(data)


def test_cut_bytes_that_are_no_text_stay() -> None:
    assert fed(8, b"\x80" * 20).text() == "\ufffd\ufffd\ufffd\ufffd\n... [15 bytes omitted] ...\n\ufffd"


def test_memory_stays_bounded() -> None:
    stream = HeadTail(1000)
    for _ in range(1000):
        stream.feed(b"x" * 10_000)
    assert stream.total == 10_000_000
    assert len(stream._head) + len(stream._tail) < 10_000


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert fed(10, b"a\xffb").text() == "a\ufffdb"
