"""Where the answer is read from: the last balanced \\boxed{} inside the answer tag of the last turn."""

import re
from collections.abc import Iterable

OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def extract_answer(turn_text: str) -> str | None:
    """From the text of the last assistant turn; None when there is no answer in the required place.

    The last closed answer tag counts, and in it the last box whose braces balance. A box elsewhere, in
    the reasoning or in a tool response, is no answer (rStar2-Agent 2.2.1).
    """
    close = turn_text.rfind(CLOSE_TAG)
    start = turn_text.rfind(OPEN_TAG, 0, max(close, 0))
    if close < 0 or start < 0:
        return None
    return last_boxed(turn_text[start + len(OPEN_TAG) : close])


def last_boxed(text: str) -> str | None:
    """The content of the last box that closes, outermost; None when there is none."""
    found = None
    at = 0
    while match := _BOX.search(text, at):
        end = _closing_brace(text, match.end())
        if end is None:
            at = match.end()
        else:
            found = text[match.end() : end]
            at = end
    return found.strip() if found is not None else None


def count_answer_tags(turn_texts: Iterable[str]) -> int:
    """Opening answer tags in what the policy wrote (p_format of rStar2-Agent 2.2.3)."""
    return sum(text.count(OPEN_TAG) for text in turn_texts)


def _closing_brace(text: str, at: int) -> int | None:
    depth = 1
    while at < len(text):
        if text[at] == "\\":
            at += 2  # an escaped brace is a character
            continue
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at += 1
    return None
