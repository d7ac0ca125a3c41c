"""Rows of any table as conversations: which column is what, and what a cell may be.

Columns are found by name (`COLUMNS`) or by a mapping such as
``{"prompt": "question", "reference": "answer", "family": "math_reasoning"}``. What a cell may be:

=========  =========================================================================================
prompt     text; a list of texts (one per turn); a list of ``{"role", "content"}`` messages
reference  text or number; a list of accepted answers (one turn) or one entry per turn (several);
           ``{"text": [...]}`` or ``{"value", "aliases"}``, as SQuAD and TriviaQA have it
family     a family, ``other``, or one of MT-bench's categories. The mapping may name a family
           instead of a column: it then holds for every row
=========  =========================================================================================

Rows without a family (or with other words under ``category``) are ``other`` (nothing says how to
score them), except those whose reference ends in GSM8K's ``#### 18``: they are ``math_reasoning``.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specbench_tasks.specbench import FAMILY_OF, gsm8k_answer
from specbench_tasks.task import FAMILIES, OTHER, Conversation, GoldAnswer

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "instruction", "input", "turns", "messages"),
    "reference": ("reference", "references", "answer", "answers", "output"),
    "family": ("family", "category"),
    "id": ("id", "question_id"),
    "system": ("system",),
}
"""What a row is made of, and the column names tried in order where no mapping is given."""

Row = Mapping[str, Any]
_NAMES = (*FAMILIES, OTHER)
_ROLES = ("system", "user")


def conversations(
    rows: Iterable[tuple[int, Row]], stem: str, where: str, columns: Mapping[str, str]
) -> list[Conversation]:
    """Every row as a conversation, in order; ids are ``<stem>-<id column or running number>``.

    Args:
        rows: rows with the numbers that error messages call them by.
        stem: what ids begin with.
        where: what error messages call the table, e.g. ``"data.jsonl, line"``.
        columns: keys of `COLUMNS` to column names (family: or a family's own name).

    Raises:
        ValueError: no column for the prompt, a named column that no row has, a cell of a wrong
            kind, an id that occurs twice. The message lists the columns that are there.
    """
    table = list(rows)
    _check_columns([row for _, row in table], where, columns)
    made: dict[str, Conversation] = {}
    for index, (number, row) in enumerate(table):
        try:
            conversation = _conversation(row, stem, index, columns)
            if conversation.id in made:
                raise ValueError(f"the id {conversation.id!r} occurs twice; ids must be unique")
        except ValueError as error:
            raise ValueError(f"{where} {number}: {error}") from error
        made[conversation.id] = conversation
    return list(made.values())


def _check_columns(rows: Sequence[Row], where: str, columns: Mapping[str, str]) -> None:
    table = where.rpartition(",")[0]
    for key, name in columns.items():
        if key not in COLUMNS:
            raise ValueError(f"unknown column key {key!r}; use one of {', '.join(COLUMNS)}")
        is_family = key == "family" and name in _NAMES
        if not is_family and not any(name in row for row in rows):
            raise ValueError(f"{table} has no column {name!r} (wanted for {key}); {_present(rows)}")
    usual = COLUMNS["prompt"]
    if "prompt" not in columns and not any(name in row for row in rows for name in usual):
        raise ValueError(
            f"{table} has no column for the prompt (tried {', '.join(usual)}); "
            f"{_present(rows)}. Name it in the config file, in [columns]: prompt = '…'"
        )


def _present(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(name for row in rows for name in row)
    return f"columns present: {', '.join(names) or 'none'}"


def _conversation(row: Row, stem: str, index: int, columns: Mapping[str, str]) -> Conversation:
    system, turns = _turns(_cell(row, "prompt", columns))
    given = _cell(row, "reference", columns)
    family = _family(row, columns, given)
    number = _cell(row, "id", columns)
    named = _cell(row, "system", columns)
    return Conversation(
        id=f"{stem}-{index:05d}" if number is None else f"{stem}-{number}",
        family=family,
        turns=turns,
        references=_references(given, len(turns), family),
        system=system if named is None else str(named),
    )


def _cell(row: Row, key: str, columns: Mapping[str, str]) -> Any:
    """The row's value for `key`: of the named column, else of the first usual one it has."""
    if key in columns:
        return row.get(columns[key])
    return next((row[name] for name in COLUMNS[key] if name in row), None)


def _turns(cell: Any) -> tuple[str | None, tuple[str, ...]]:
    if isinstance(cell, str):
        return None, (cell,)
    if isinstance(cell, Sequence) and cell:
        if all(isinstance(turn, str) for turn in cell):
            return None, tuple(cell)
        if all(isinstance(turn, Mapping) and {"role", "content"} <= set(turn) for turn in cell):
            said = {role: [t["content"] for t in cell if t["role"] == role] for role in _ROLES}
            if said["user"]:
                return "\n".join(said["system"]) or None, tuple(said["user"])
    raise ValueError(
        f"the prompt is {_short(cell)}; it must be text, a list of texts (one per turn), or a "
        "list of role/content messages with a user among them"
    )


def _family(row: Row, columns: Mapping[str, str], reference: Any) -> str:
    if columns.get("family") in _NAMES and columns["family"] not in row:
        return columns["family"]
    value = _cell(row, "family", columns)
    if isinstance(value, str) and value in (*FAMILY_OF, OTHER):
        return FAMILY_OF.get(value, OTHER)
    # a column called "category" often means something else; one called "family" is ours
    if value is not None and ("family" in columns or "family" in row):
        raise ValueError(
            f"the family is {_short(value)}; use one of {', '.join(_NAMES)} (or set family to "
            "one of them in the column mapping, for all rows)"
        )
    is_gsm8k = any(gsm8k_answer(text) != text for text in _texts(reference))
    return "math_reasoning" if is_gsm8k else OTHER


def _references(cell: Any, num_turns: int, family: str) -> tuple[GoldAnswer | None, ...]:
    per_turn = [cell] if num_turns == 1 else cell
    if per_turn is None or isinstance(per_turn, str):
        per_turn = [per_turn]
    if not isinstance(per_turn, Sequence) or len(per_turn) > num_turns:
        raise ValueError(
            f"the reference is {_short(cell)}; give one entry for each of {num_turns} turns"
        )
    padded = [*per_turn, *([None] * (num_turns - len(per_turn)))]
    return tuple(_reference(item, family) for item in padded)


def _reference(cell: Any, family: str) -> GoldAnswer | None:
    answers = _texts(cell)
    if family == "math_reasoning":
        answers = [gsm8k_answer(answer) for answer in answers]
    kept = tuple(answer for answer in answers if answer.strip())
    return GoldAnswer(answers=kept) if kept else None


def _texts(cell: Any) -> list[str]:
    """All accepted answers in a cell, whatever it is nested in."""
    if cell is None:
        return []
    if isinstance(cell, str | int | float):
        return [str(cell)]
    if isinstance(cell, Mapping):
        return _texts([cell[key] for key in ("text", "value", "aliases") if key in cell])
    if isinstance(cell, Sequence):
        return [text for item in cell for text in _texts(item)]
    raise ValueError(f"the reference is {_short(cell)}; it must be text, a number, or a list")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
