"""Where the answer is read from: the last balanced \\boxed{} inside the answer tag of the last turn."""

import re
from collections.abc import Iterable

OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"
MAX_ANSWER_CHARS = 100_000  # inside the tag; longer is no answer, whatever is in it
_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def extract_answer(turn_text: str) -> str | None:
    """From the text of the last assistant turn; None when there is no answer in the required place.

    The last closed answer tag counts, and in it the last box whose braces balance. A box elsewhere, in
    the reasoning or in a tool response, is no answer (rStar2-Agent 2.2.1).
    """
    close = turn_text.rfind(CLOSE_TAG)
    start = turn_text.rfind(OPEN_TAG, 0, max(close, 0))
    if close < 0 or start < 0 or close - start > MAX_ANSWER_CHARS:
        return None
    return last_boxed(turn_text[start + len(OPEN_TAG) : close])


def last_boxed(text: str) -> str | None:
    """The content of the last box that closes, outermost; None when there is none. Reads the text once."""
    found: tuple[int, int] | None = None
    unclosed: list[tuple[bool, int]] = []  # is it a box, where its content starts
    for match in _BRACE.finditer(text):
        if match.lastgroup in ("box", "open"):
            unclosed.append((match.lastgroup == "box", match.end()))
        elif match.lastgroup == "close" and unclosed:
            is_box, start = unclosed.pop()
            if is_box:
                found = start, match.start()
    return text[slice(*found)].strip() if found is not None else None


def count_answer_tags(turn_texts: Iterable[str]) -> int:
    """Opening answer tags in what the policy wrote (p_format of rStar2-Agent 2.2.3)."""
    return sum(text.count(OPEN_TAG) for text in turn_texts)
