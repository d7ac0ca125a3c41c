"""Files as rows: kinds told apart, text kept as it is, and one line for what is no table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specbench_tasks.tables import read_table, short
from tests.specbench_tasks.published import write_parquet


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("a.jsonl", '\ufeff{"p": 1}\n\n{"p": 2}', [(1, {"p": 1}), (3, {"p": 2})]),
        ("a.data", '  {"p": 1}\n', [(1, {"p": 1})]),
        ("a.json", ' [{"p": 1},\n {"p": 2}]', [(1, {"p": 1}), (2, {"p": 2})]),
        ("a.jsonl", '[{"p": 1}]', [(1, {"p": 1})]),
        ("a.csv", 'p,q\n007,NA\n\n"a\nb,c",""\nd,e\n', [
            (2, {"p": "007", "q": "NA"}), (4, {"p": "a\nb,c", "q": ""}), (6, {"p": "d", "q": "e"}),
        ]),
        ("a.csv", 'p,q\n"[""a"", [""b""]]","[4, 1]"\n', [(2, {"p": ["a", ["b"]], "q": "[4, 1]"})]),
        ("a.tsv", "p\tq\na,b\t\u2028\r\n", [(2, {"p": "a,b", "q": "\u2028"})]),
    ],
)  # fmt: skip
def test_a_files_kind_is_detected_by_content_or_extension_and_rows_keep_their_line_numbers(
    name: str, text: str, rows: object, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert list(read_table(tmp_path / name).rows) == rows


def test_parquet_is_known_by_its_content(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.bin", [{"p": "a", "q": [1]}, {"p": None, "q": [2]}])
    table = read_table(tmp_path / "rows.bin")
    assert table.rows == [(0, {"p": "a", "q": [1]}), (1, {"p": None, "q": [2]})]
    assert table.where.endswith("rows.bin, row")


def test_a_cell_may_be_longer_than_128_kib(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"p\n{'x' * 200_000}\n")
    ((_, row),) = read_table(tmp_path / "a.csv").rows
    assert len(row["p"]) == 200_000


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "p,q\n1,2\n1,2,3\n", "line 3: 3 cells for 2 columns"),
        ("a.csv", "p,q\n1\n", "line 2: 1 cells for 2 columns"),
        ("a.csv", "p,p\n1,2\n", "line 1: two columns have one name, in p, p"),
        ("a.csv", 'p\n1\n"a\n', "line 3: unexpected end of data"),
        ("a.csv", "p,q\n", "holds no rows"),
        ("a.json", "[]", "holds no rows"),
        ("a.json", '[{"p": 1}, 3]', "item 2 is a int, not an object"),
        ("a.json", '[{"p": 1}', "begins like a JSON list but is not one: Expecting"),
        ("a.json", "[" * 100_000, "begins like a JSON list but is not one"),
        ("a.json", '[{"p": "\\ud83d"}]', "item 1 holds half a character"),
        ("a.jsonl", '{"p": 1}\n3\n', "line 2 is a int, not an object"),
        ("a.jsonl", '{"p": ' + "[" * 100_000, "line 1 is not JSON"),
        ("a.parquet", "PAR1 and no more", "a.parquet is not Parquet: "),
        ("a.parquet", '{"p": 1}', "a.parquet is not Parquet: "),
        ("a.bin", "red", "is none of JSONL, a JSON list, CSV"),
    ],
)
def test_an_invalid_table_is_refused_with_one_line(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_table(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_folder_or_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path, tmp_path / "pipe.jsonl", tmp_path / "none.jsonl"):
        with pytest.raises(
            ValueError, match=r"no file .*give the path of an existing file \(JSONL"
        ):
            read_table(path)
    with pytest.raises(ValueError, match="File name too long"):
        read_table(tmp_path / ("x" * 400))


@pytest.mark.parametrize(("num", "shown"), [(58, "x" * 58 + "'"), (59, "x" * 56 + "…")])
def test_a_value_is_shown_whole_up_to_sixty_characters(num: int, shown: str) -> None:
    assert short("x" * num) == f"'{shown}"
