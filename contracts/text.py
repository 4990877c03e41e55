"""What a text may hold to be stored: neither UTF-8 files nor PostgreSQL take NUL and lone surrogates."""

import re
from typing import Any

NO_TEXT = re.compile("[\0\ud800-\udfff]")


def clean_text(text: str) -> str:
    """The text with U+FFFD for each character that is none."""
    return NO_TEXT.sub("\ufffd", text)


def clean(value: Any) -> Any:
    """A JSON value with every text in it cleaned, names of fields too."""
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(k)): clean(v) for k, v in value.items()}
        case list() | tuple():
            return [clean(v) for v in value]
    return value
