"""Which sequence numbers of an attempt were taken in: inclusive ranges, exact and as small as the number of gaps."""

from bisect import bisect_right

MAX_RANGES = 10_000

Ranges = list[list[int]]


class TooManyGaps(Exception):
    """The numbers are not those of a journal."""


def has_seen(ranges: Ranges, seq: int) -> bool:
    at = bisect_right(ranges, seq, key=lambda r: r[0]) - 1
    return at >= 0 and seq <= ranges[at][1]


def add_seen(ranges: Ranges, seq: int) -> bool:
    """Add one number in place; False when it was there already."""
    at = bisect_right(ranges, seq, key=lambda r: r[0])
    if at > 0 and seq <= ranges[at - 1][1]:
        return False
    joins_left = at > 0 and ranges[at - 1][1] + 1 == seq
    joins_right = at < len(ranges) and ranges[at][0] - 1 == seq
    match joins_left, joins_right:
        case True, True:
            ranges[at - 1][1] = ranges.pop(at)[1]
        case True, False:
            ranges[at - 1][1] = seq
        case False, True:
            ranges[at][0] = seq
        case _:
            if len(ranges) >= MAX_RANGES:
                raise TooManyGaps(f"more than {MAX_RANGES} gaps in the sequence numbers of the attempt")
            ranges.insert(at, [seq, seq])
    return True
