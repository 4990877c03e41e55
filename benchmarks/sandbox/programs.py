"""Families of programs. Each takes a random source and returns the code and what it prints, found another way.

The oracle of a family is a closed form or a table made once, so that a load of thousands is written in seconds.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import accumulate

Family = Callable[[random.Random], tuple[str, str]]


@cache
def _primes() -> list[int]:
    sieve = bytearray([1]) * 120_001
    sieve[:2] = b"\0\0"
    for p in range(2, 347):
        if sieve[p]:
            sieve[p * p :: p] = bytes(len(range(p * p, len(sieve), p)))
    return [n for n, is_prime in enumerate(sieve) if is_prime]


def count_primes(rng: random.Random) -> tuple[str, str]:
    limit = rng.randrange(70_000, 110_000)
    code = f"""def sieve(n):
    is_prime = [True] * (n + 1)
    is_prime[0] = is_prime[1] = False
    for p in range(2, int(n ** 0.5) + 1):
        if is_prime[p]:
            for m in range(p * p, n + 1, p):
                is_prime[m] = False
    return [i for i in range(n + 1) if is_prime[i]]

primes = sieve({limit})
print(f"There are {{len(primes)}} primes up to {limit}")
print("largest:", primes[-1])
"""
    index = bisect_right(_primes(), limit)
    return code, f"There are {index} primes up to {limit}\nlargest: {_primes()[index - 1]}\n"


@cache
def _ways(coins: tuple[int, ...]) -> list[int]:
    ways = [1] + [0] * 11_000
    for coin in coins:
        for amount in range(coin, len(ways)):
            ways[amount] += ways[amount - coin]
    return ways


def count_change(rng: random.Random) -> tuple[str, str]:
    coins = rng.choice(((1, 2, 5, 10, 20, 50), (1, 5, 10, 25, 50, 100), (2, 3, 7, 11, 13, 17), (1, 3, 9, 27, 81, 5)))
    amount = rng.randrange(7_000, 11_000)
    code = f"""coins = {list(coins)}
target = {amount}
ways = [0] * (target + 1)
ways[0] = 1
for c in coins:
    for t in range(c, target + 1):
        ways[t] += ways[t - c]
print(ways[target])
"""
    return code, f"{_ways(coins)[amount]}\n"


def recurrence(rng: random.Random) -> tuple[str, str]:
    p, q, m = rng.randrange(1, 9), rng.randrange(1, 9), rng.choice((10007, 998244353, 10**9 + 7))
    n = rng.randrange(45_000, 65_000)
    code = f"""# a(n+1) = {p} a(n) + {q} a(n-1) modulo {m}
a, b = 0, 1
for _ in range({n}):
    a, b = b, ({p} * b + {q} * a) % {m}
print("a_n mod m =", a)
"""
    return code, f"a_n mod m = {_matrix_power(((0, 1), (q, p)), n, m)[0][1] % m}\n"


def _matrix_power(matrix: tuple[tuple[int, ...], ...], n: int, m: int) -> list[list[int]]:
    size = len(matrix)
    result = [[int(i == j) for j in range(size)] for i in range(size)]
    base = [list(row) for row in matrix]
    while n:
        if n & 1:
            result = _product(result, base, m)
        base = _product(base, base, m)
        n >>= 1
    return result


def _product(a: list[list[int]], b: list[list[int]], m: int) -> list[list[int]]:
    columns = list(zip(*b, strict=True))
    return [[sum(x * y for x, y in zip(row, column, strict=True)) % m for column in columns] for row in a]


@cache
def _coprime_pairs() -> list[int]:
    phi = list(range(500))
    for p in range(2, 500):
        if phi[p] == p:
            for m in range(p, 500, p):
                phi[m] -= phi[m] // p
    return list(accumulate(phi))


def coprime_pairs(rng: random.Random) -> tuple[str, str]:
    n = rng.randrange(400, 500)
    code = f"""from math import gcd

def count_pairs(n):
    count = 0
    for a in range(1, n + 1):
        for b in range(1, a + 1):
            if gcd(a, b) == 1:
                count += 1
    return count

print("coprime pairs:", count_pairs({n}))
"""
    return code, f"coprime pairs: {_coprime_pairs()[n]}\n"


def telescoping_sum(rng: random.Random) -> tuple[str, str]:
    n, k = rng.randrange(2800, 3600), rng.randrange(1, 40)
    code = f"""from fractions import Fraction

total = Fraction(0)
for i in range({k}, {k + n}):
    total += Fraction(1, i * (i + 1))
print(total, float(total))
"""
    total = Fraction(1, k) - Fraction(1, k + n)
    return code, f"{total} {float(total)}\n"


def derangements(rng: random.Random) -> tuple[str, str]:
    n, first = 7, rng.randrange(1, 7)
    code = f"""from itertools import permutations

class Seating:
    def __init__(self, n):
        self.n = n

    def is_valid(self, p):
        return all(p[i] != i for i in range(self.n))

seating = Seating({n})
good = [p for p in permutations(range({n})) if seating.is_valid(p)]
print(len(good))
print(sum(1 for p in good if p[0] == {first}))
"""
    return code, "1854\n309\n"


def digit_sums(rng: random.Random) -> tuple[str, str]:
    modulus, digits = rng.choice((3, 9)), 5
    residue, limit = rng.randrange(modulus), rng.randrange(22_000, 30_000)
    code = f"""def digit_sum(n):
    s = 0
    while n:
        n, d = divmod(n, 10)
        s += d
    return s

hits = [n for n in range(1, {limit}) if digit_sum(n) % {modulus} == {residue}]
print(len(hits), hits[:{digits}])
"""
    hits = range(residue or modulus, limit, modulus)  # a digit sum is the number itself modulo 3 and 9
    return code, f"{len(hits)} {list(hits[:digits])}\n"


def word_count(rng: random.Random) -> tuple[str, str]:
    words = rng.sample(["alpha", "beta", "gamma", "delta", "prime", "lemma", "proof", "angle"], 4)
    times = rng.randrange(3000, 4500)
    code = f"""from collections import Counter

text = " ".join({words} * {times})
counts = Counter()
for word in text.split():
    counts[word.upper()] += 1
for word, count in sorted(counts.items()):
    print(word, count)
"""
    return code, "".join(f"{word.upper()} {times}\n" for word in sorted(words))


def matrix_trace(rng: random.Random) -> tuple[str, str]:
    n, m = rng.randrange(3000, 4200), rng.choice((1009, 10007))
    matrix = tuple(tuple(rng.randrange(9) for _ in range(3)) for _ in range(3))
    code = f"""import numpy as np

A = np.array({[list(row) for row in matrix]}, dtype=np.int64)
P = np.eye(3, dtype=np.int64)
for _ in range({n}):
    P = P @ A % {m}
print("trace:", int(np.trace(P)))
"""
    power = _matrix_power(matrix, n, m)
    return code, f"trace: {sum(power[i][i] for i in range(3))}\n"


def linear_system(rng: random.Random) -> tuple[str, str]:
    n = rng.randrange(130, 170)
    a, b = rng.randrange(2, 50), rng.randrange(1, 50)
    code = f"""import numpy as np

n = {n}
i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
A = ((i * {a} + j * {b}) % 7 + (i == j) * 20 * n).astype(float)
x = np.arange(1, n + 1, dtype=float)
rhs = A @ x
for _ in range(25):
    solution = np.linalg.solve(A, rhs)
print(np.round(solution[:5]).astype(int).tolist(), round(float(solution.sum())))
"""
    return code, f"[1, 2, 3, 4, 5] {n * (n + 1) // 2}\n"


@cache
def _dice_ways(dice: int, faces: int) -> list[int]:
    ways = [1]
    for _ in range(dice):
        longer = [0] * (len(ways) + faces)
        for total, count in enumerate(ways):
            for face in range(1, faces + 1):
                longer[total + face] += count
        ways = longer
    return ways


def dice(rng: random.Random) -> tuple[str, str]:
    number, faces = rng.randrange(8, 12), rng.choice((4, 6, 8))
    total = rng.randrange(number * 2, number * faces - number)
    code = f"""import numpy as np

def ways(dice, faces):
    p = np.array([1], dtype=np.int64)
    die = np.array([0] + [1] * faces, dtype=np.int64)
    for _ in range(dice):
        p = np.convolve(p, die)
    return p

for _ in range(300):
    p = ways({number}, {faces})
print(f"ways to roll {total}: {{p[{total}]}}, all: {{p.sum()}}")
"""
    return code, f"ways to roll {total}: {_dice_ways(number, faces)[total]}, all: {faces**number}\n"


def triangular_numbers(rng: random.Random) -> tuple[str, str]:
    n, m = rng.randrange(400_000, 500_000), rng.choice((7, 11, 13, 17, 19))
    code = f"""import numpy as np

t = np.cumsum(np.arange(1, {n} + 1, dtype=np.int64))
divisible = t[t % {m} == 0]
print(divisible.size, int(divisible[-1]))
"""
    # T(k) = k (k + 1) / 2 is divisible by an odd prime m exactly where k or k + 1 is.
    last = max(n // m * m, (n + 1) // m * m - 1)
    return code, f"{n // m + (n + 1) // m} {last * (last + 1) // 2}\n"


def monte_carlo(rng: random.Random) -> tuple[str, str]:
    n, seed = rng.randrange(250_000, 320_000), rng.randrange(10**6)
    code = f"""import numpy as np

rng = np.random.default_rng({seed})
points = rng.random(({n}, 2))
inside = int((points[:, 0] ** 2 + points[:, 1] ** 2 <= 1).sum())
estimate = 4 * inside / {n}
print("pi is about 3.1:", abs(estimate - 3.14159) < 0.03)
"""
    return code, "pi is about 3.1: True\n"


def polynomial_roots(rng: random.Random) -> tuple[str, str]:
    roots, first = sorted(rng.sample(range(-12, 13), 4)), rng.randrange(1, 30)
    code = f"""from sympy import symbols, expand, solve, factor

x = symbols('x')
p = expand({_product_text(roots)})
roots = sorted(solve(p, x))
print("roots:", roots)
for k in range({first}, {first} + 9):
    q = expand(p * (x**2 + x + k) * (x**3 - 2 * k) * (k * x**2 + 1))
    assert expand(factor(q) - q) == 0
print("all the same")
"""
    return code, f"roots: {roots}\nall the same\n"


def _product_text(roots: list[int]) -> str:
    return " * ".join(f"(x - ({root}))" for root in roots)


def antiderivative(rng: random.Random) -> tuple[str, str]:
    a, b, c, top = rng.randrange(2, 9), rng.randrange(1, 9), rng.randrange(1, 9), rng.randrange(1, 6)
    code = f"""from sympy import symbols, integrate, diff, simplify, exp, sin, Rational

x = symbols('x')
f = ({a}*x**2 + {b}*x + {c}) * exp(-x)
F = integrate(f, x)
print("check:", simplify(diff(F, x) - f) == 0)
G = integrate(({b}*x + {c}) * sin({a}*x), x)
print("check:", simplify(diff(G, x) - ({b}*x + {c}) * sin({a}*x)) == 0)
print("area:", integrate({a}*x**2 + {b}*x + Rational({c}, 3), (x, 0, {top})))
"""
    area = Fraction(a * top**3, 3) + Fraction(b * top**2, 2) + Fraction(c, 3) * top
    return code, f"check: True\ncheck: True\narea: {area}\n"


def system_of_equations(rng: random.Random) -> tuple[str, str]:
    x, y, z = (rng.randrange(-9, 10) for _ in range(3))
    rows = ((2, 1, -1), (1, -3, 2), (3, 2, 5))
    equations = ", ".join(
        f"Eq({a}*x + {b}*y + {c}*z, {a * x + b * y + c * z})" for a, b, c in rows
    )  # fmt: skip
    code = f"""from sympy import symbols, Eq, solve, simplify, sin, cos, Rational

x, y, z, t = symbols('x y z t')
answer = solve([{equations}], [x, y, z])
print(answer[x], answer[y], answer[z])
print(simplify(sin(t)**4 + 2*sin(t)**2*cos(t)**2 + cos(t)**4 + {abs(x)}))
print(simplify((sin(t) + cos(t))**2 - sin(2*t) + {abs(y)}))
"""
    return code, f"{x} {y} {z}\n{1 + abs(x)}\n{1 + abs(y)}\n"


def power_sum(rng: random.Random) -> tuple[str, str]:
    p, n = rng.randrange(3, 7), rng.randrange(50, 500)
    code = f"""from sympy import symbols, summation, expand

k, n = symbols('k n', integer=True, positive=True)
formula = expand(summation(k**{p} + {n}*k, (k, 1, n)))
print(formula.subs(n, {n}))
print(expand(formula.subs(n, n + 1) - formula - (n + 1)**{p} - {n}*(n + 1)))
"""
    return code, f"{sum(k**p + n * k for k in range(1, n + 1))}\n0\n"


def eigenvalues(rng: random.Random) -> tuple[str, str]:
    d = sorted(rng.sample(range(-9, 10), 3))
    u, v, w = (rng.randrange(1, 6) for _ in range(3))
    code = f"""from sympy import Matrix, symbols, factor, limit, sin

x = symbols('x')
M = Matrix([[{d[0]}, {u}, {v}], [0, {d[1]}, {w}], [0, 0, {d[2]}]])
for k in range(1, 34):
    P = Matrix([[1, 2, 0], [0, 1, 3], [k, 0, 1]])
    A = P * M * P.inv()
    assert set(A.eigenvals()) == {set(d)}
print(sorted(A.eigenvals()), A.det())
print("limit:", limit(sin({u}*x) / ({v}*x), x, 0))
print(factor(A.charpoly(x).as_expr()).subs(x, {d[1]}))
"""
    return code, f"{d} {math.prod(d)}\nlimit: {Fraction(u, v)}\n0\n"


PYTHON: tuple[Family, ...] = (
    count_primes, count_change, recurrence, coprime_pairs, telescoping_sum, derangements, digit_sums, word_count,
)  # fmt: skip
NUMPY: tuple[Family, ...] = (matrix_trace, linear_system, dice, triangular_numbers, monte_carlo)
SYMPY: tuple[Family, ...] = (polynomial_roots, antiderivative, system_of_equations, power_sum, eigenvalues)
