"""Integers, compared as strings of digits: exact at any length, and without loading a computer algebra system."""

import re
import unicodedata

_INTEGER = re.compile(r"[+-]?\d+")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+")
_ZERO_FRACTION = re.compile(r"([+-]?\d+)\.0*")
_LATEX_COMMA = re.compile(r"(?<=\d)(?:\{,\}|,?\\[,!] ?)(?=\d{3}(?!\d))")


def verify_integer(answer: str, reference: str) -> bool | None:
    """Exact at any length; None when the reference is no integer, or the answer may be one in other dress."""
    wanted, given = parse_integer(reference), parse_integer(answer)
    if wanted is None or given is None:
        return None
    return wanted == given


def parse_integer(text: str) -> str | None:
    """Canonical digits of an integer literal: signs, leading zeros, grouping and `.0` removed."""
    text = narrow(text).strip().strip("$").strip().replace("\u2212", "-")
    text = _LATEX_COMMA.sub(",", text)
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    if match := _ZERO_FRACTION.fullmatch(text):
        text = match.group(1)
    if not _INTEGER.fullmatch(text) or not text.isascii():
        return None
    digits = text.lstrip("+-").lstrip("0") or "0"
    return f"-{digits}" if text.startswith("-") and digits != "0" else digits


def narrow(text: str) -> str:
    """Full-width digits and signs as ASCII; nothing else (NFKC would make m\u00b2 an m2)."""
    return "".join(unicodedata.normalize("NFKC", c) if unicodedata.east_asian_width(c) == "F" else c for c in text)
