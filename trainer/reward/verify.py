"""Is an answer equal to the reference? Pure; may be slow or hang, so `pool.py` runs it in a killable process.

Numbers in digits are compared exactly at any length. Everything else goes to math-verify behind guards for
what it is known to get wrong (false positives as well as hangs), with its own signal-based timeout switched
off. The rules and their reasons: docs/decisions/grading.md.
"""

import re

from math_verify import parse
from math_verify import verify as math_verify
from sympy import Expr, Float, Integer, Rational, nan, zoo

from trainer.reward.numbers import narrow, read_literal, verify_number

MAX_CHARS = 2000
MAX_NESTING = 40
MAX_EXPONENT = 10_000  # of an integer power or factorial that would be expanded

_OPEN, _CLOSE = r"(?:[\s{(\[]|\\left)*", r"(?:[\s})\]]|\\right)*"
_POWER = rf"\^{_OPEN}(\d+){_CLOSE}"
_TOWER = re.compile(rf"{_POWER}{_POWER}")
_HIGH_TOWER = re.compile(_POWER * 3)
_SIZE = re.compile(rf"\^{_OPEN}[+-]?\s*(\d+)|(\d+)\s*[)}}]?\s*!")
_REPEATED_FACTORIAL = re.compile(r"![\s)}]*!")
_UNIT = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{\s*([^{}]*?)\s*\}\s*(?:\^\s*\{?\s*(\d)\s*\}?)?\s*$")
_BASE = re.compile(r"\s*(\d+)_\{?(\d{1,2})\}?\s*")
_PERCENT_WORD = r"(?:percent(?:age)?|pct)\b"
_PERCENT = re.compile(rf"\\?%|\\text\s*\{{\s*{_PERCENT_WORD}\s*\}}|\b{_PERCENT_WORD}")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:[.,]\d+)?")
_SET = re.compile(r"(?:\\left)?\s*\\\{.*\\\}", re.DOTALL)
_TUPLE = re.compile(r"(?:\\left)?\s*\([^()]*,[^()]*\)")
_JOINED = re.compile(r"\$\s*(,?\s*(?:and|or))\s*\$")
_CHOICE = re.compile(r"\s*\(?([A-Za-z])(?:\)|\s*[:.].*|)\s*", re.DOTALL)
_ORDINAL = re.compile(r"(\d+)\s*\^?\s*\{?\s*\\(?:mathrm|text)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?.*", re.DOTALL)


class BadReference(ValueError):
    """The reference answer cannot be read: a fault of the data set, never a wrong answer."""


def verify(answer: str, reference: str) -> bool:
    """True when the answer means the same as the reference. Raises `BadReference`."""
    exact = verify_number(answer, reference)
    if exact is not None:
        return exact
    if len(answer) > MAX_CHARS:
        return answer.strip() == reference.strip()
    answer, reference = _normalize(answer), _normalize(reference)
    if not reference:
        raise BadReference("the reference is empty")
    if answer == reference:
        return True
    if not answer or is_dangerous(answer) or _is_other_unit(answer, reference) or _is_other_kind(answer, reference):
        return False
    if re.fullmatch(r"[A-Z]", reference):
        return _choice(answer) == reference
    answer, reference = _in_base_ten(answer, reference), _PERCENT.sub(" ", reference)
    exact = verify_number(_PERCENT.sub(" ", answer), reference)
    return _compare(_PERCENT.sub(" ", answer), reference) if exact is None else exact


def _compare(answer: str, reference: str) -> bool:
    if is_dangerous(reference):
        raise BadReference(f"the reference {reference[:80]!r} is too large to compare")
    gold = _parse(reference)
    if not gold:
        raise BadReference(f"the reference {reference[:80]!r} cannot be parsed")
    given = _parse(answer)
    if not given or _is_stray_number(given, answer):
        return False
    if any(isinstance(side[0], Expr) and side[0].has(nan, zoo) for side in (gold, given)):
        return False  # without a value, like 12:00 read as a ratio: equal to the same text only
    if _equal(gold, given):
        return True
    # math-verify reads an interval for an inequality in one order of arguments only, on purpose.
    return _is_range(reference) and _is_range(answer) and _equal(given, gold)


def _normalize(text: str) -> str:
    text = narrow(text).strip()
    text = re.sub(r"(?<=\d)(?:\\[,;: ]|[~ \u2009\u202f])(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"\\mathrm\s*\{e\}", "e", text)
    text = _JOINED.sub(r"\\text{ \1 }", text)
    if text.startswith("\\$") and "$" not in text[2:]:
        text = text[2:]
    if match := _ORDINAL.fullmatch(text):
        return match.group(1)
    return re.sub(r"(?<=\d)\.$", "", text)


def _choice(answer: str) -> str | None:
    """The letter of a multiple-choice answer: `a`, `(C)`, `\\text{(C)}`, `E: because ...`."""
    bare = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", r"\1", answer).strip("$ ")
    match = _CHOICE.fullmatch(bare)
    return match.group(1).upper() if match else None


def _parse(text: str) -> list[object]:
    """math-verify's reading, as LaTeX first; its timeout needs the main thread and signals, so it is off."""
    wrapped = text if "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text else f"${text}$"
    return _parse_as_is(wrapped) or _parse_as_is(text)


def _parse_as_is(text: str) -> list[object]:
    return list(parse(text, parsing_timeout=None, raise_on_error=True))


def _is_stray_number(found: list[object], text: str) -> bool:
    """Picked out of a text that is no mathematics, where another number follows: no answer."""
    value, source = found[0], found[-1]
    if not isinstance(value, Integer | Float) or not isinstance(source, str) or read_literal(source):
        return False
    numbers = _NUMBER.findall(text)
    return bool(numbers) and verify_number(numbers[-1], str(abs(value))) is False


def _equal(gold: list[object], given: list[object]) -> bool:
    if not math_verify(gold, given, timeout_seconds=None, raise_on_error=True):
        return False
    # It rounds to six digits, where small or close fractions all look alike: rationals are compared exactly.
    exact = _rational(gold[0]), _rational(given[0])
    return exact[0] is None or exact[1] is None or exact[0] == exact[1]


def _rational(value: object) -> Rational | None:
    """The exact value; None for anything that is no rational number or was written as a decimal."""
    if not isinstance(value, Expr) or value.has(Float):
        return None
    value = value.doit()
    return value if isinstance(value, Rational) else None


def _is_range(text: str) -> bool:
    return bool(re.search(r"[<>]|\\[lg]eq?\b|\\in\b|^\s*(?:\\left)?\s*[(\[].*[)\]]\s*$", text, re.DOTALL))


def is_dangerous(text: str) -> bool:
    """What would burn the whole time limit: towers of powers, huge powers and factorials, deep nesting, length."""
    text = text.replace("**", "^")
    if len(text) > MAX_CHARS or _HIGH_TOWER.search(text) or _REPEATED_FACTORIAL.search(text):
        return True
    if any(int(size[1] or size[2]) > MAX_EXPONENT for size in _SIZE.finditer(text)):
        return True
    if any(int(low) ** min(int(high), 64) > MAX_EXPONENT for low, high in _TOWER.findall(text)):
        return True
    depth = deepest = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        deepest = max(deepest, depth)
    return deepest > MAX_NESTING


def _is_other_unit(answer: str, reference: str) -> bool:
    """Another unit or base than the reference's, or a percent sign that it has not (math-verify ignores them)."""
    given, wanted = _BASE.fullmatch(answer), _BASE.fullmatch(reference)
    if given and wanted and given[2] != wanted[2]:
        return True
    given, wanted = _UNIT.search(answer), _UNIT.search(reference)
    if given and wanted and _unit(given) != _unit(wanted) and re.search(r"\d", reference[: wanted.start()]):
        return True
    return bool(_PERCENT.search(answer)) and not _PERCENT.search(reference)


def _is_other_kind(answer: str, reference: str) -> bool:
    """A set in braces for a tuple in parentheses, or the reverse (math-verify reads a pair as an interval)."""
    bare = answer.strip("$ "), reference.strip("$ ")
    return any(_SET.fullmatch(one) and _TUPLE.fullmatch(other) for one, other in (bare, bare[::-1]))


def _unit(match: re.Match[str]) -> tuple[str, str]:
    """The name without the ending of a plural, and the power."""
    return re.sub(r"(?<=\w\w)e?s?$", "", match[1]), match[2] or "1"


def _in_base_ten(answer: str, reference: str) -> str:
    """The value of an answer in another base, where the reference names no base; else the answer."""
    match = _BASE.fullmatch(answer)
    if match is None or _BASE.fullmatch(reference):
        return answer
    try:
        return str(int(match[1], int(match[2])))
    except ValueError:  # no such base, or not its digits
        return answer
