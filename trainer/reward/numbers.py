"""Numbers written in digits, compared exactly at any length, and without loading a computer algebra system.

A literal is an integer, a decimal or a multiple of a power of ten, in any dress a model gives it: `1{,}000`,
`\\text{12}`, `3.0`, `1.5\\times10^{3}`, full-width digits. It is compared as (sign, digits, power of ten), so
neither its length nor its exponent costs anything: no `int`, which refuses more than 4,300 digits.
"""

import re
from dataclasses import dataclass

_DRESS = re.compile(r"\\\((.*)\\\)|\\\[(.*)\\\]|\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", re.DOTALL)
_MAX_DRESS = 4  # layers taken off
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,?\\[,!;: ] ?|[~ \u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_TEN = r"10\s*\^\s*(?:\{\s*([+-]?\d{1,18})\s*\}|(\d))"
_LITERAL = re.compile(
    rf"([+-]?)(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:[eE]([+-]?\d{{1,18}})|\s*(?:\\times|\\cdot|\*|\u00d7|\u00b7)\s*{_TEN})?",
    re.ASCII,
)
_POWER_OF_TEN = re.compile(rf"([+-]?){_TEN}", re.ASCII)
_MORE_THAN_DIGITS = re.compile(r"[A-Za-z^]|\\[$(\[]")
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x2212: "-"}


@dataclass(frozen=True, slots=True)
class Literal:
    """The number `digits` times ten to the `exponent`; no zero at either end of `digits`, '' for zero."""

    is_negative: bool
    digits: str
    exponent: int


def verify_number(answer: str, reference: str) -> bool | None:
    """Whether two literals are the same number; None when one of the two is no literal."""
    wanted = read_literal(reference)
    given = read_literal(answer) if wanted is not None else None
    return None if wanted is None or given is None else wanted == given


def read_literal(text: str) -> Literal | None:
    """The number a text is and nothing else; None for anything but a literal."""
    text = _THOUSANDS.sub(",", _undress(narrow(text)))
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    if match := _POWER_OF_TEN.fullmatch(text):
        return _canonical(match[1], "1", "", match[2] or match[3])
    if match := _LITERAL.fullmatch(text):
        return _canonical(match[1], match[2] or "", match[3] or match[4] or "", match[5] or match[6] or match[7] or "0")
    return None


def parse_integer(text: str) -> str | None:
    """The one spelling of an integer that is written in digits: no plus sign, no leading zeros, no commas.

    None for anything else, a power of ten, a text command or a currency sign too.
    """
    number = read_literal(text)
    if number is None or number.exponent < 0 or _MORE_THAN_DIGITS.search(text):
        return None
    return "-" * number.is_negative + (number.digits + "0" * number.exponent or "0")


def narrow(text: str) -> str:
    """Full-width digits and signs as ASCII, a minus sign as a hyphen; nothing else (NFKC would make m\u00b2 an m2)."""
    return text if text.isascii() else text.translate(_FULL_WIDTH)


def _undress(text: str) -> str:
    """Without math and currency signs, the text command and the white space around all of it."""
    text = text.strip().removeprefix("\\$").strip("$ \n")
    for _ in range(_MAX_DRESS):
        match = _DRESS.fullmatch(text)
        if match is None:
            break
        text = next(part for part in match.groups() if part is not None).strip("$ \n")
    return text


def _canonical(sign: str, whole: str, fraction: str, exponent: str) -> Literal:
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return Literal(is_negative=False, digits="", exponent=0)
    return Literal(sign == "-", kept, int(exponent) - len(fraction) + len(digits) - len(kept))
