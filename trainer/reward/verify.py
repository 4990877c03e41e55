"""Is an answer equal to the reference? Pure; may be slow or hang, so `pool.py` runs it in a killable process.

Integers are compared exactly at any length. Everything else goes to math-verify behind guards for what it
is known to get wrong (false positives as well as hangs), with its own signal-based timeout switched off.
"""

import re

from math_verify import parse
from math_verify import verify as math_verify
from sympy import Expr, Float, Rational

from trainer.reward.integers import narrow, verify_integer

MAX_CHARS = 2000
MAX_NESTING = 40
MAX_EXPONENT = 4000  # of an integer power that would be expanded

_TOWER = re.compile(r"\^[\s{(\\a-z]*\d*[\s{(]*\^|\^\s*\{?\s*\d+\s*\^")
_BIG_EXPONENT = re.compile(r"\^\s*\{?\s*(\d+)")
_BIG_FACTORIAL = re.compile(r"(\d+)\s*\}?\s*!")
_UNIT = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{\s*([^{}]*?)\s*\}\s*$")
_BASE = re.compile(r"^\s*\d+_\{?(\d+)\}?\s*$")
_PERCENT = re.compile(r"%|\bpercent|\bpct\b")
_CHOICE = re.compile(r"\s*\(?([A-Za-z])(?:\)|\s*[:.].*|)\s*", re.DOTALL)
_ORDINAL = re.compile(r"(\d+)\s*\^?\s*\{?\s*\\(?:mathrm|text)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?.*", re.DOTALL)


class BadReference(ValueError):
    """The reference answer cannot be read: a fault of the data set, never a wrong answer."""


def verify(answer: str, reference: str) -> bool:
    """True when the answer means the same as the reference. Raises `BadReference`."""
    exact = verify_integer(answer, reference)
    if exact is not None:
        return exact
    answer, reference = _normalize(answer), _normalize(reference)
    if answer == reference:
        return bool(answer)
    if not answer or _is_dangerous(answer) or _is_other_unit(answer, reference):
        return False
    if re.fullmatch(r"[A-Z]", reference):
        return _choice(answer) == reference
    gold = _parse(reference)
    if not gold:
        raise BadReference(f"the reference {reference[:80]!r} cannot be parsed")
    given = _parse(answer)
    if not given:
        return False
    if _equal(gold, given):
        return True
    # math-verify reads an interval for an inequality in one order of arguments only, on purpose.
    return _is_range(reference) and _is_range(answer) and _equal(given, gold)


def _normalize(text: str) -> str:
    text = narrow(text).strip().replace("\u2212", "-")
    text = re.sub(r"(?<=\d)(?:\\[,;: ]|~|\u2009|\u202f| )(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"\\mathrm\s*\{e\}", "e", text)
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
    return list(parse(wrapped, parsing_timeout=None)) or list(parse(text, parsing_timeout=None))


def _equal(gold: list[object], given: list[object]) -> bool:
    if not math_verify(gold, given, float_rounding=6, strict=True, timeout_seconds=None):
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


def _is_dangerous(text: str) -> bool:
    """What would burn the whole time limit: towers of powers, huge powers and factorials, deep nesting, length."""
    if len(text) > MAX_CHARS or _TOWER.search(text):
        return True
    if any(int(e) > MAX_EXPONENT for e in _BIG_EXPONENT.findall(text)):
        return True
    if any(int(n) > MAX_EXPONENT for n in _BIG_FACTORIAL.findall(text)):
        return True
    depth = deepest = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        deepest = max(deepest, depth)
    return deepest > MAX_NESTING


def _is_other_unit(answer: str, reference: str) -> bool:
    """Another unit or base than the reference's, or a percent sign on one side only (math-verify ignores them)."""
    for pattern in (_UNIT, _BASE):
        given, wanted = pattern.search(answer), pattern.search(reference)
        if given and wanted and given.group(1) != wanted.group(1) and re.search(r"\d", reference[: wanted.start(1)]):
            return True
    return bool(_PERCENT.search(answer)) != bool(_PERCENT.search(reference))
