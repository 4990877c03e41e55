"""Problems that say the same: exact duplicates, near-duplicates, and words shared with a benchmark.

Near-duplicates have the same numbers, the same answer and a MinHash similarity of word 3-grams of at least 0.8
(datasketch). Problems that differ in a number or in the answer are two problems, however alike their words.
Contamination is any word 8-gram shared with a benchmark (rStar2-Agent 4.2); a word is a run of letters or digits,
case and Unicode form do not count; a text of fewer than 8 words is one gram of its own.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from datasketch import MinHash, MinHashLSH

from trainer.rollout.trajectory import Problem

NEAR_DUPLICATE_SIMILARITY = 0.8
MINHASH_PERMUTATIONS = 64
SHINGLE_WORDS = 3
CONTAMINATION_WORDS = 8
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a problem is refused, and the id of the other problem it is refused for."""

    reason: str
    match: str = ""


@dataclass(frozen=True, slots=True)
class BenchmarkProblem:
    benchmark: str
    id: str


Grams = Mapping[tuple[str, ...], BenchmarkProblem]


def normalise_text(text: str) -> str:
    """Equal for texts that differ in case, spacing or Unicode form only."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def find_duplicates(problems: Sequence[Problem]) -> list[Refusal | None]:
    """All but the first of equal texts; all of them where their answers differ, since nobody knows which is right."""
    same: dict[str, list[Problem]] = defaultdict(list)
    keys = [normalise_text(problem.text) for problem in problems]
    for key, problem in zip(keys, problems, strict=True):
        same[key].append(problem)
    return [_judge_duplicate(problem, same[key]) for key, problem in zip(keys, problems, strict=True)]


def _judge_duplicate(problem: Problem, same: Sequence[Problem]) -> Refusal | None:
    other = next((p for p in same if p.answer != problem.answer), None)
    if other is not None:
        return Refusal(
            f"the same problem has the answers {problem.answer[:40]} here and {other.answer[:40]} as {other.id}",
            other.id,
        )
    return None if same[0] is problem else Refusal(f"the same problem as {same[0].id}", same[0].id)


def find_near_duplicates(problems: Sequence[Problem]) -> list[Refusal | None]:
    """Each is compared with those kept before it."""
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        alike[(problem.answer, *sorted(_NUMBER.findall(problem.text)))].append(i)
    refusals: list[Refusal | None] = [None] * len(problems)
    for members in alike.values():
        if len(members) > 1:
            _compare(problems, members, refusals)
    return refusals


def _compare(problems: Sequence[Problem], members: Sequence[int], refusals: list[Refusal | None]) -> None:
    index = MinHashLSH(threshold=NEAR_DUPLICATE_SIMILARITY, num_perm=MINHASH_PERMUTATIONS)
    hashes: dict[int, MinHash] = {}
    for i in members:
        own = _minhash(problems[i].text)
        similar = [(own.jaccard(hashes[j]), -j) for j in index.query(own)]
        similarity, first = max(similar, default=(0.0, 0))
        if similarity >= NEAR_DUPLICATE_SIMILARITY:
            other = problems[-first].id
            refusals[i] = Refusal(f"nearly the same problem as {other}: similarity {similarity:.2f}", other)
        else:
            index.insert(i, own)
            hashes[i] = own


def _minhash(text: str) -> MinHash:
    sketch = MinHash(num_perm=MINHASH_PERMUTATIONS)
    sketch.update_batch([" ".join(gram).encode() for gram in word_grams(text, SHINGLE_WORDS)])
    return sketch


def word_grams(text: str, size: int) -> list[tuple[str, ...]]:
    """Word n-grams in the order of the text; a shorter text is one gram of its own."""
    words = _WORD.findall(normalise_text(text))
    return [tuple(words[i : i + size]) for i in range(max(1, len(words) - size + 1))]


def index_benchmark(name: str, problems: Iterable[Problem]) -> dict[tuple[str, ...], BenchmarkProblem]:
    """The word 8-grams of a benchmark, each with the first problem that has it."""
    grams: dict[tuple[str, ...], BenchmarkProblem] = {}
    for problem in problems:
        for gram in word_grams(problem.text, CONTAMINATION_WORDS):
            grams.setdefault(gram, BenchmarkProblem(name, problem.id))
    return grams


def find_contamination(problem: Problem, grams: Grams) -> Refusal | None:
    if not grams:
        return None
    shared = next((gram for gram in word_grams(problem.text, CONTAMINATION_WORDS) if gram in grams), None)
    if shared is None:
        return None
    found = grams[shared]
    return Refusal(f"shares words with problem {found.id} of {found.benchmark}: {' '.join(shared)!r}", found.id)
