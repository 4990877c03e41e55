"""Which reference answers a rule can verify: integers. What is none is told apart, so that a reader of the
rejected rows sees why (rStar2-Agent 4.2: unverifiable, composite and over-long answers are removed).

A comma between groups of three digits is a thousands separator ("1,024", "24{,}000"), any other one separates
two answers. An integer is stored in its one spelling: no plus sign, no leading zeros, no commas.
"""

import math
import re

from contracts.curation import Check
from trainer.reward.numbers import parse_integer

MAX_DIGITS = 40
SHOWN_CHARS = 80
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,!;: ]|~|\\(?:quad|qquad|left|right|displaystyle)(?![A-Za-z])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3,}|\b(?:no|yes)\b", re.IGNORECASE)
_CHOICE = re.compile(r"\(?[A-H]\)?\.?")
_UNKNOWN = re.compile(
    r"\b(no (real |integer |such |valid )?(solutions?|limit|answer|integers?|numbers?)|do(es)? not exist|dne|undefined"
    r"|cannot be determined|infinitely many|not (possible|enough|unique)|proof|prove|see (solution|above))\b",
    re.IGNORECASE,
)
_SCIENTIFIC = re.compile(r"\d\s*(?:[eE]\s*\+?|(?:\\times|\\cdot|\*|x|×)\s*10\s*(?:\^|\*\*)\s*\{?\s*)(\d+)")
_POWER = re.compile(r"(\d+)\s*\}?\)?\s*(?:\^|\*\*)\s*\{?\s*(\d+)")
_FACTORIAL = re.compile(r"(\d+)\s*!")
_DIGITS = re.compile(r"(?<![\d.,])\d[\d,]*")
_PARTS = re.compile(r"(?:^|[\s;,])\(?(?:[a-e]|i{1,3}|iv|[1-9])\)\s*\S", re.IGNORECASE)
_JOINED = re.compile(r"\b(?:and|or)\b|\\(?:pm|mp|cup|vee|wedge|lor|land)(?![A-Za-z])|±|;|\\\\|&", re.IGNORECASE)
_BRACKETS = re.compile(r"\\begin\{|\\?\{.*,.*\\?\}|[(\[].*,.*[)\]]", re.DOTALL)
_QUANTITIES = re.compile(r"\d\s*[A-Za-z]{1,12}\.?\s+\d")


def judge_answer(answer: str) -> tuple[Check, str] | None:
    """The first check an answer fails, and why; None for an integer of at most 40 digits."""
    shown = repr(answer[:SHOWN_CHARS])
    integer = parse_integer(answer)
    if integer is not None:
        digits = len(integer.lstrip("-"))
        return (Check.HUGE, f"the answer has {digits} digits, more than {MAX_DIGITS}") if digits > MAX_DIGITS else None
    text = _plain(answer)
    if _is_unverifiable(text):
        return Check.UNVERIFIABLE, f"a rule cannot verify the answer {shown}"
    if why := _find_composite(text):
        return Check.COMPOSITE, f"{why}: {shown}"
    if (digits := _count_digits(answer)) > MAX_DIGITS:
        return Check.HUGE, f"the answer stands for a number of about {digits:,} digits, more than {MAX_DIGITS}: {shown}"
    return Check.INTEGER, f"the answer is not an integer: {shown}"


def normalise_answer(answer: str) -> str:
    """The one spelling of an integer; any other answer as it is."""
    return parse_integer(answer) or answer


def _plain(answer: str) -> str:
    """Without dollar signs, boxes and spacing commands; what a \\text{} holds stays."""
    text = answer.strip().replace("$", " ").replace("{,}", ",").replace("\\!", "")
    text = _TEXT_COMMAND.sub(r" \1 ", text)
    return _SPACING.sub(" ", text).strip()


def _is_unverifiable(text: str) -> bool:
    if _UNKNOWN.search(text) or _CHOICE.fullmatch(text):
        return True
    bare = _COMMAND.sub(" ", text)
    return "=" not in bare and not any(c.isdigit() for c in bare) and _WORD.search(bare) is not None


def _find_composite(text: str) -> str:
    if len(_PARTS.findall(text)) > 1:
        return "the answer has several parts"
    if _BRACKETS.search(text):
        return "the answer is a tuple, a set, an interval or a matrix"
    if _JOINED.search(text) or re.search(r",(?!\d{3}(?!\d))|,\s", text):
        return "the answer has several values"
    return "the answer has several quantities with units" if _QUANTITIES.search(_COMMAND.sub(" ", text)) else ""


def _count_digits(answer: str) -> int:
    """About how many digits the largest number in the answer has, written out; bounds, not values, are computed."""
    text = answer.replace("{,}", ",").replace("\\!", "")
    sizes = [len(found.replace(",", "")) for found in _DIGITS.findall(text)]
    sizes += [_as_count(exponent) + 1 for exponent in _SCIENTIFIC.findall(text)]
    sizes += [round(_as_count(e) * math.log10(max(1, _as_count(base)))) + 1 for base, e in _POWER.findall(text)]
    sizes += [round(math.lgamma(min(_as_count(n), 10**6) + 1) / math.log(10)) + 1 for n in _FACTORIAL.findall(text)]
    return max(sizes, default=0)


def _as_count(digits: str) -> int:
    return int(digits) if len(digits) <= 15 else 10**15
