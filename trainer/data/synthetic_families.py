"""The families of generated problems: one function each, from a random source and a difficulty to a draft.

Answers are computed here, independently of the programs, so that a test can hold the two against each other.
"""

import math
import random
from dataclasses import dataclass

OUTPUT = "OUTPUT"

_THINGS = ("bolts", "apples", "pencils", "tiles", "coins", "books")
_BOXES = ("crates", "boxes", "bags", "shelves")


@dataclass(frozen=True)
class Draft:
    problem: str
    answer: int
    solutions: tuple[tuple[str, ...], ...]
    wrong: tuple[tuple[str, ...], ...]
    broken: tuple[str, ...]  # the family's own mistakes; the common ones are added by `broken_versions`


def broken_versions(draft: Draft) -> tuple[str, ...]:
    """The family's own failing programs first, then slips that can happen to any program."""
    program = draft.solutions[0][0]
    head, call, tail = program.rpartition("print(")
    slips = (
        f"{head}prnt({tail}",
        program[:-1],  # the closing bracket is forgotten
        f"{head}{call.removesuffix('(')} {tail[:-1]}",
    )
    return draft.broken + slips


def _number(rng: random.Random, digits: int) -> int:
    return rng.randint(10 ** (digits - 1) + (digits == 1), 10**digits - 1)


def stock(rng: random.Random, difficulty: int) -> Draft:
    thing, box = rng.choice(_THINGS), rng.choice(_BOXES)
    a = _number(rng, (2, 2, 3, 3, 4)[difficulty - 1])
    b = _number(rng, (1, 2, 2, 3, 3)[difficulty - 1])
    c = rng.randint(2, a * b - 1) if difficulty < 4 else _number(rng, 3)
    if difficulty < 4:
        text = rng.choice(
            (
                f"A store has {a} {box} with {b} {thing} in each. It sells {c} {thing}. How many {thing} are left?",
                f"There are {b} {thing} in each of {a} {box}. {c} {thing} are taken away. How many {thing} remain?",
                f"Ann packs {a} {box} of {b} {thing} and then loses {c} {thing}. How many {thing} does she have?",
            )
        )
        return Draft(
            text,
            a * b - c,
            ((f"print({a}*{b}-{c})",), (f"total = {a}*{b}\nprint(total-{c})",)),
            ((f"print({a}+{b}-{c})",), (f"print({a}*{b}+{c})",)),
            (f"total = {a}*{b}\nprint(totl-{c})", f'print({a}*{b}-"{c}")'),
        )
    e = _number(rng, 2)
    text = rng.choice(
        (
            f"A store has {a} {box} with {b} {thing} in each and {c} {box} with {e} {thing} in each. "
            f"How many {thing} does it have?",
            f"Ann packs {a} {box} of {b} {thing} and {c} {box} of {e} {thing}. How many {thing} does she pack?",
        )
    )
    return Draft(
        text,
        a * b + c * e,
        ((f"print({a}*{b}+{c}*{e})",), (f"total = {a}*{b}\nprint(total+{c}*{e})",)),
        ((f"print(({a}+{c})*({b}+{e}))",), (f"print({a}*{b}-{c}*{e})",)),
        (f"total = {a}*{b}\nprint(totl+{c}*{e})", f'print({a}*{b}+"{c}"*{e})'),
    )


def remainder(rng: random.Random, difficulty: int) -> Draft:
    a = _number(rng, (1, 2, 2, 3, 3)[difficulty - 1]) + 1
    b = _number(rng, (1, 1, 2, 2, 3)[difficulty - 1]) + 1
    m = _number(rng, (2, 2, 3, 3, 4)[difficulty - 1])
    text = rng.choice(
        (
            f"What is the remainder when {a} to the power {b} is divided by {m}?",
            f"Find {a}^{b} modulo {m}.",
            f"The number {a}^{b} is divided by {m}. What remainder is left?",
        )
    )
    return Draft(
        text,
        pow(a, b, m),
        ((f"print({a}**{b}%{m})",), (f"print(pow({a}, {b}, {m}))",)),
        ((f"print({a}^{b}%{m})",), (f"print({a}*{b}%{m})",)),
        (f"print(power({a}, {b}, {m}))", f'print({a}**{b}%"{m}")'),
    )


def range_sum(rng: random.Random, difficulty: int) -> Draft:
    k = rng.randint(2, 9) if difficulty < 4 else rng.randint(11, 60)
    a = _number(rng, (1, 2, 2, 2, 3)[difficulty - 1])
    b = k * (a // k + rng.randint(*((4, 20), (10, 60), (50, 300), (30, 150), (100, 160))[difficulty - 1]))
    text = rng.choice(
        (
            f"What is the sum of all multiples of {k} from {a} to {b}?",
            f"Add up every integer from {a} to {b} that is divisible by {k}.",
            f"Find the sum of the numbers between {a} and {b}, ends included, that {k} divides.",
        )
    )
    loop = f"total = 0\nfor n in range({a}, {b}+1):\n    if n%{k} == 0:\n        total += n\nprint(total)"
    return Draft(
        text,
        sum(n for n in range(a, b + 1) if n % k == 0),
        ((f"print(sum(n for n in range({a}, {b}+1) if n%{k} == 0))",), (loop,)),
        ((f"print(sum(n for n in range({a}, {b}) if n%{k} == 0))",), (f"print(sum(range({a}, {b}+1)))",)),
        (f"print(sum(n for n in range({a}, {b}+1) if n%{k} = 0))", f"print(sum({a}, {b}+1))"),
    )


def common(rng: random.Random, difficulty: int) -> Draft:
    size = (2, 2, 3, 3, 4)[difficulty - 1]
    factor = rng.randint(2, (9, 9, 20, 60, 99)[difficulty - 1])
    a, b = (factor * max(2, _number(rng, size) // factor) for _ in range(2))
    if rng.random() < 0.5:
        right, other, answer = "gcd", "lcm", math.gcd(a, b)
        text = rng.choice(
            (
                f"What is the greatest common divisor of {a} and {b}?",
                f"Two ribbons of {a} cm and {b} cm are cut into equal pieces, as long as possible. "
                "How long is each piece in cm?",
            )
        )
    else:
        right, other, answer = "lcm", "gcd", math.lcm(a, b)
        text = rng.choice(
            (
                f"What is the least common multiple of {a} and {b}?",
                f"Two lamps flash every {a} and {b} seconds. They flash together now. "
                "In how many seconds do they next flash together?",
            )
        )
    return Draft(
        text,
        answer,
        ((f"from math import {right}\nprint({right}({a}, {b}))",), (f"import math\nprint(math.{right}({a}, {b}))",)),
        ((f"from math import {other}\nprint({other}({a}, {b}))",),),
        (f"print({right}({a}, {b}))", f"import math\nprint(math.{right[0] + right[2] + right[1]}({a}, {b}))"),
    )


def counting(rng: random.Random, difficulty: int) -> Draft:
    c, e = rng.sample(range(2, 12) if difficulty < 4 else range(6, 40), 2)
    a = _number(rng, (1, 2, 2, 3, 3)[difficulty - 1])
    span = (30, 80, 300, 900, 8000)[difficulty - 1]
    b = c * ((a + rng.randint(span // 3, span)) // c + 1)
    text = rng.choice(
        (
            f"How many integers from {a} to {b} are divisible by {c} or {e}?",
            f"Count the numbers from {a} to {b} that are multiples of {c} or of {e}.",
            f"Tickets {a} to {b} win if {c} or {e} divides the number. How many tickets win?",
        )
    )
    test = f"n%{c} == 0 or n%{e} == 0"
    return Draft(
        text,
        sum(n % c == 0 or n % e == 0 for n in range(a, b + 1)),
        (
            (f"print(sum({test} for n in range({a}, {b}+1)))",),
            (f"print(len([n for n in range({a}, {b}+1) if {test}]))",),
        ),
        (
            (f"print(sum({test} for n in range({a}, {b})))",),
            (f"print(sum(n%{c} == 0 and n%{e} == 0 for n in range({a}, {b}+1)))",),
        ),
        (f"print(count({test} for n in range({a}, {b}+1)))", f"print(len(n for n in range({a}, {b}+1) if {test}))"),
    )


def digits(rng: random.Random, difficulty: int) -> Draft:
    a = _number(rng, (1, 2, 2, 3, 4)[difficulty - 1]) + 1
    b = rng.randint(*((3, 9), (4, 12), (10, 30), (10, 40), (20, 99))[difficulty - 1])
    text = rng.choice(
        (
            f"What is the sum of the digits of {a} to the power {b}?",
            f"Write out {a}^{b} and add its digits. What do you get?",
            f"Find the digit sum of {a}^{b}.",
        )
    )
    return Draft(
        text,
        sum(map(int, str(a**b))),
        ((f"print(sum(int(d) for d in str({a}**{b})))",), (f"print(sum(map(int, str({a}**{b}))))",)),
        ((f"print(len(str({a}**{b})))",), (f"print(sum(int(d) for d in str({a}*{b})))",)),
        (f"print(sum(str({a}**{b})))", f"print(sum(int(d) for d in {a}**{b}))"),
    )


def choose(rng: random.Random, difficulty: int) -> Draft:
    n = rng.randint(*((6, 12), (8, 20), (15, 30), (20, 60), (30, 90))[difficulty - 1])
    k = rng.randint(2, (3, 4, 5, 5, 6)[difficulty - 1])
    if rng.random() < 0.5:
        right, other, answer = "comb", "perm", math.comb(n, k)
        text = rng.choice(
            (
                f"A club has {n} members. In how many ways can it choose a team of {k}?",
                f"How many different sets of {k} cards can be drawn from {n} cards?",
            )
        )
    else:
        right, other, answer = "perm", "comb", math.perm(n, k)
        text = rng.choice(
            (
                f"A club has {n} members. In how many ways can it fill {k} different posts?",
                f"How many ordered lists of {k} cards can be dealt from {n} cards?",
            )
        )
    return Draft(
        text,
        answer,
        ((f"from math import {right}\nprint({right}({n}, {k}))",), (f"import math\nprint(math.{right}({n}, {k}))",)),
        ((f"from math import {other}\nprint({other}({n}, {k}))",),),
        (f"print({right}({n}, {k}))", f"import math\nprint(math.choose({n}, {k}))"),
    )


def growth(rng: random.Random, difficulty: int) -> Draft:
    ratio = rng.randint(2, 3) if difficulty < 5 else rng.randint(2, 4)
    hours = rng.randint(*((3, 4), (4, 6), (5, 8), (7, 11), (9, 12))[difficulty - 1])
    start = _number(rng, (1, 2, 2, 3, 3)[difficulty - 1]) + 4
    loss = rng.randint(2, start - 1)
    text = rng.choice(
        (
            f"A colony has {start} cells. Every hour it grows {ratio} times as large and then {loss} cells die. "
            f"How many cells are there after {hours} hours?",
            f"A pond holds {start} fish. Each year the number is multiplied by {ratio} and then {loss} fish are "
            f"caught. How many fish are there after {hours} years?",
            f"Start with {start}. Multiply by {ratio} and subtract {loss}; do this {hours} times. What is the result?",
        )
    )
    answer = start
    for _ in range(hours):
        answer = answer * ratio - loss
    body = f"    x = x*{ratio}-{loss}\nprint(x)"
    return Draft(
        text,
        answer,
        (
            (f"x = {start}\nfor i in range({hours}):\n{body}",),
            (f"x, i = {start}, 0\nwhile i < {hours}:\n    i += 1\n{body}",),
        ),
        (
            (f"x = {start}\nfor i in range(1, {hours}):\n{body}",),
            (f"print({start}*{ratio}**{hours}-{loss})",),
        ),
        (f"x = {start}\nfor i in range({hours})\n{body}", f"for i in range({hours}):\n{body}"),
    )


def chain(rng: random.Random, difficulty: int) -> Draft:
    """Problems of two parts, where the number from the first part has to be looked at before the second."""
    return _digit_chain(rng, difficulty) if rng.random() < 0.5 else _common_chain(rng, difficulty)


def _digit_chain(rng: random.Random, difficulty: int) -> Draft:
    a, b = _number(rng, 2), rng.randint(*((3, 6), (4, 9), (8, 15), (10, 25), (20, 40))[difficulty - 1])
    c, m = rng.randint(2, 9 if difficulty < 4 else 40), _number(rng, 2 if difficulty < 3 else 3)
    total = sum(map(int, str(a**b)))
    text = rng.choice(
        (
            f"Let s be the sum of the digits of {a}^{b}. What is the remainder when {c}^s is divided by {m}?",
            f"Add the digits of {a}^{b} and call the sum s. Find {c}^s modulo {m}.",
        )
    )
    first = f"print(sum(int(d) for d in str({a}**{b})))"
    return Draft(
        text,
        pow(c, total, m),
        (
            (first, f"print({c}**{OUTPUT}%{m})"),
            (f"s = sum(int(d) for d in str({a}**{b}))\nprint({c}**s%{m})",),
        ),
        ((first, f"print({c}*{OUTPUT}%{m})"), (f"s = sum(int(d) for d in str({a}*{b}))\nprint({c}**s%{m})",)),
        (f"print(sum(str({a}**{b})))", f"s = sum(int(d) for d in {a}**{b})\nprint({c}**s%{m})"),
    )


def _common_chain(rng: random.Random, difficulty: int) -> Draft:
    factor = rng.randint(3, (9, 12, 20, 40, 90)[difficulty - 1])
    a, b = (factor * max(2, _number(rng, 2 if difficulty < 3 else 3) // factor) for _ in range(2))
    g = math.gcd(a, b)
    c = g + _number(rng, 2 if difficulty < 4 else 3)
    text = rng.choice(
        (
            f"Let g be the greatest common divisor of {a} and {b}. What is the sum of the integers from g to {c}?",
            f"Find the greatest common divisor g of {a} and {b}. Then add all integers from g to {c}. What do you get?",
        )
    )
    first = f"from math import gcd\nprint(gcd({a}, {b}))"
    return Draft(
        text,
        sum(range(g, c + 1)),
        (
            (first, f"print(sum(range({OUTPUT}, {c}+1)))"),
            (f"from math import gcd\nprint(sum(range(gcd({a}, {b}), {c}+1)))",),
        ),
        (
            (first, f"print(sum(range({OUTPUT}, {c})))"),
            (f"from math import lcm\nprint(sum(range(lcm({a}, {b}), {c}+1)))",),
        ),
        (f"print(gcd({a}, {b}))", f"import math\nprint(math.gdc({a}, {b}))"),
    )
