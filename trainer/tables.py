"""Plain text tables for reports in a terminal: figures to the right, words to the left."""

from collections.abc import Sequence


def format_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is words, the others are figures; '' for a table without rows."""
    if not rows:
        return ""
    lines = [list(headers), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    body = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    rule = "  ".join("-" * w for w in widths)
    return "\n".join([title, *(f"  {line.rstrip()}" for line in (body[0], rule, *body[1:])), ""])


def percent(part: float, whole: float) -> str:
    """'12.5 %', or '-' where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
