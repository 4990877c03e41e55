"""Sources with bad rows: which file, which line, what was wrong; nothing is lost."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.curation import RULES, Check
from trainer.data.curation import curate_rows
from trainer.data.problems import check_schema, to_problem
from trainer.data.sources import DataError, RawRow, gather_rows, open_source, read_rows

ALL = frozenset(map(Check, RULES))


def refusals(path: Path) -> list[tuple[int, str]]:
    return [(row.line, why.split(":")[0]) for row in read_rows(path) if (why := check_schema(row))]


def test_bad_lines_of_json_keep_their_line_and_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b"\n".join(
            [
                b'\xef\xbb\xbf{"problem": "good", "answer": 1}',
                b'{"problem": "broken", "answer": ',
                b'["a", "list"]',
                b"",
                b'{"problem": "no answer"}',
                b'{"problem": "  ", "answer": 1}',
                b'{"problem": "true", "answer": true}',
                b'{"problem": "list", "answer": [1, 2]}',
                b'{"problem": "bad \xff bytes", "answer": 1}',
                b'{"problem": 7, "answer": 1}',
                b'{"problem": "surrogate \\ud800", "answer": "\\u0000 1"}',
            ]
        )
    )
    assert refusals(path) == [
        (2, "bad JSON"),
        (3, "bad JSON"),
        (5, "field 'answer' is missing or empty"),
        (6, "field 'problem' is missing or empty"),
        (7, "field 'answer' is neither text nor a number"),
        (8, "field 'answer' is neither text nor a number"),
        (9, "not UTF-8"),
        (10, "field 'problem' is not text"),
    ]
    rejected = curate_rows(list(read_rows(path)), ALL, max_problem_chars=99).rejected
    assert rejected[0].row == '{"problem": "broken", "answer": '
    assert json.loads(rejected[5].row) == {"problem": "list", "answer": [1, 2]}
    assert all(row.model_dump_json().encode() for row in rejected)


def test_numbers_keep_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    answers = ["4.0", "2.5", "6.5e27330467", "12345678901234567890.0", "9" * 5000]
    path.write_text("".join(f'{{"problem": "p{i}", "answer": {a}}}\n' for i, a in enumerate(answers)))
    found = [to_problem(row).answer for row in read_rows(path)]
    assert found == ["4", "2.5", "6.5e27330467", "12345678901234567890.0", "9" * 5000]


def test_a_json_list_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"problem": "a", "answer": 1}]')
    with pytest.raises(DataError, match="one JSON list: write one JSON object a line"):
        list(read_rows(path))


def test_csv_rows_keep_their_first_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeffQuestion,Answer,topic\n"two\nlines",3,a\nlast,x,b\nmore,1,c,d\n'.encode() + b"b\xff,1,a\n")
    rows = list(read_rows(path))
    assert [(row.line, row.values.get("question"), row.error.split(":")[0]) for row in rows[:3]] == [
        (2, "two\nlines", ""),
        (4, "last", ""),
        (5, None, "bad CSV"),
    ]
    assert (rows[2].text, rows[3].error.split(":")[0], rows[3].text) == ("more,1,c,d", "not UTF-8", "b\ufffd,1,a")


def test_a_csv_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("task,answer\na,1\n")
    with pytest.raises(DataError, match="rows.csv has no column 'problem' in its first line"):
        list(read_rows(path))


def test_parquet_of_the_released_layout_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.Table.from_pylist(
        [
            {"prompt": [{"role": "user", "content": "1 + 1?"}], "reward_model": {"ground_truth": "2"}, "level": 3},
            {"prompt": None, "reward_model": {"ground_truth": "2"}, "level": None},
        ]
    )
    pq.write_table(table, path)
    good, bad = read_rows(path)
    problem = to_problem(good)
    assert (problem.text, problem.answer, problem.extra["level"]) == ("1 + 1?", "2", "3")
    assert (bad.line, check_schema(bad)) == (2, "field 'problem' is missing or empty")


def test_a_parquet_row_that_is_not_utf8_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    texts = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"problem": texts, "answer": ["1", "2", "3"]}), path)
    assert [(row.line, bool(row.error)) for row in read_rows(path)] == [(1, False), (2, True), (3, False)]


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("not parquet")
    with pytest.raises(DataError, match="rows.parquet is no readable Parquet file"):
        list(read_rows(path))


def make_folder(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path / "set",
        {"b.jsonl": '{"problem": "b", "answer": 1}\n', "a.csv": "problem,answer\na,1\n", "notes.txt": "no"},
    )
    sources = open_source("set", lambda name: folder)
    assert [source.name for source in sources] == ["set/a.csv", "set/b.jsonl"]
    rows, has_more = gather_rows(sources, 10)
    assert ({row.source for row in rows}, has_more) == ({"set/a.csv", "set/b.jsonl"}, False)
    with pytest.raises(DataError, match="no file ending in"):
        open_source("x", lambda name: make_folder(tmp_path / "empty", {}))


def test_the_order_of_sources_changes_nothing_and_the_limit_is_seen(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "set", {f"{i}.jsonl": f'{{"problem": "{i}", "answer": {i}}}\n' for i in range(6)})
    sources = open_source("set", lambda name: folder)
    rows, has_more = gather_rows(sources, 4)
    assert gather_rows(sources[::-1], 4) == (rows, has_more)
    assert (len(rows), has_more) == (4, True)


class FakeHub(ModuleType):
    """Stands for the package `datasets`."""

    def __init__(self, answer: Any) -> None:
        super().__init__("datasets")
        self.answer = answer
        self.asked: list[Any] = []

    def load_dataset(self, name: str, config: str | None, *, split: str, streaming: bool) -> Any:
        self.asked.append((name, config, split, streaming))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def read_from(hub: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[RawRow]:
    monkeypatch.setitem(sys.modules, "datasets", hub)
    return gather_rows(open_source(name, Path), 10)[0]


def test_a_set_of_the_hub_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub([{"problem": "1 + 1?", "expected_answer": "2"}])
    (row,) = read_from(hub, "hf:nvidia/OpenMathReasoning@default:cot", monkeypatch)
    assert hub.asked == [("nvidia/OpenMathReasoning", "default", "cot", True)]
    assert (to_problem(row).answer, row.line, row.source) == ("2", 1, "hf:nvidia/OpenMathReasoning@default:cot")


@pytest.mark.parametrize(
    ("hub", "name", "words"),
    [
        (None, "hf:owner/set", "pip install datasets"),
        (FakeHub(ConnectionError("no route")), "hf:owner/set", "cannot be read from the Hugging Face hub .*no route"),
        (FakeHub([]), "hf:just-a-name", "write hf:OWNER/NAME"),
    ],
)
def test_a_hub_that_cannot_be_used_says_what_to_do(
    hub: Any, name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=words):
        read_from(hub, name, monkeypatch)


@given(st.lists(st.binary(max_size=60), max_size=8), st.sampled_from([".jsonl", ".csv"]))
def test_no_bytes_break_the_readers(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ending: str) -> None:
    path = tmp_path_factory.mktemp("bytes") / f"rows{ending}"
    path.write_bytes((b"problem,answer\n" if ending == ".csv" else b"") + b"\n".join(lines))
    rows = list(read_rows(path))
    funnel = curate_rows(rows, ALL, max_problem_chars=10)
    assert len(funnel.problems) + len(funnel.rejected) == len(rows)
    assert all(json.dumps(row.model_dump(), ensure_ascii=False).encode() for row in funnel.rejected)
