"""Read the rows of any table as conversations: the columns, and allowed cells.

Columns are found by name (`COLUMNS`) or by a mapping such as
``{"prompt": "question", "reference": "answer", "family": "math_reasoning"}``. Cells may hold:

=========  =========================================================================================
prompt     text; a list of texts (one per turn); a list of messages (see `specbench_tasks.shapes`)
reference  text or number; a list of accepted answers (one turn) or one entry per turn (several);
           ``{"text": [...]}`` or ``{"value", "aliases"}``, as in SQuAD and TriviaQA
family     a family, ``other``, or one of MT-bench's categories. The mapping may name a family
           instead of a column, which then applies to every row
=========  =========================================================================================

Answers among a prompt's messages are the history of later turns; if no column gives references,
they are the references too. Rows without a family, or with an unknown ``category``, are ``other``
and not scored, except rows whose reference ends like GSM8K's (``#### 18``): they are
``math_reasoning``. Each category of SPEED-Bench, which has no references, is a family of its own.
`Reading.notes` describe how the rows were read, and which fields were not read.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specbench_tasks.shapes import MATH, PROMPTS, SPEC, SPEED, RowPrompt, gsm8k_answer, read_prompt
from specbench_tasks.tables import NumberedRows, Row, short
from specbench_tasks.task import (
    FAMILIES,
    FAMILY_OF,
    MT_BENCH,
    OTHER,
    SCORED_SETS,
    SETS,
    Conversation,
    GoldAnswer,
    Reading,
)

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prompt": PROMPTS,
    "reference": ("reference", "references", "answer", "answers", "output"),
    "family": ("family", "category"),
    "id": ("id", "question_id"),
    "system": ("system",),
}
"""Parts of a row, and the column names that are tried in order without a mapping."""
_NAMES = (*FAMILIES, OTHER)


def conversations(
    table: NumberedRows, stem: str, columns: Mapping[str, str], shapes: Sequence[str] = ()
) -> Reading:
    """Read every row as a conversation.

    A ShareGPT conversation that has no valid prompt (empty, or starting with an answer) is left out
    and noted, because the published files have thousands.

    Args:
        table: numbered rows.
        stem: prefix of the ids, ``<stem>-<id column or running number>``.
        columns: column names by key of `COLUMNS` (for family also a family's name).
        shapes: the shapes that its rows may have; empty: any.

    Raises:
        ValueError: another shape, no column for the prompt, or several, a named column that no row
            has, a cell of a wrong type, an empty prompt, or a duplicate id. The message names what
            the table has.
    """
    _check_columns(table, columns)
    by_id: dict[str, Conversation] = {}
    prompts: list[RowPrompt] = []
    left_out: list[str] = []
    unread: dict[str, None] = {}
    for index, (number, row) in enumerate(table.rows):
        try:
            prompt = read_prompt(row, columns.get("prompt"))
            if shapes and prompt.shape not in shapes:
                raise ValueError(f"it is read as {prompt.shape}, not as {shapes[0]}")
            conversation = _conversation(prompt, row, stem, index, columns)
            if conversation.id in by_id:
                raise ValueError(f"the id {conversation.id!r} occurs twice; ids must be unique")
        except ValueError as error:
            if "conversations" in row and "prompt" not in columns:
                left_out.append(f"{table.where} {number}: {error}")
                continue
            raise ValueError(f"{table.where} {number}: {error}") from error
        by_id[conversation.id] = conversation
        prompts.append(prompt)
        keys = (key for key in COLUMNS if key != "prompt")
        read = prompt.fields | {columns.get(key) or _usual(row, key) for key in keys}
        rest = (name for name, cell in row.items() if cell not in (None, "", [], {}))
        unread |= dict.fromkeys(name or "''" for name in rest if name not in read)
    if not by_id:
        raise ValueError(left_out[0] if left_out else f"{_name(table)} holds no rows")
    return Reading(
        conversations=list(by_id.values()),
        notes=tuple(_notes(_name(table), list(by_id.values()), prompts, left_out, list(unread))),
    )


def published_set(table: NumberedRows, name: str) -> Reading:
    """Read the rows of one of `SETS` as a separate family (`ValueError`: rows of another set).

    Prompts are the unchanged texts of the rows, as in AIPerf. Only `SCORED_SETS` are scored.
    """
    shapes, family = SETS[name]
    reading = conversations(table, name, {}, shapes)
    for one in reading.conversations:
        if one.family != family:
            raise ValueError(f"{_name(table)} holds {one.id} of {one.family}, not only {shapes[0]}")
    scored = name in SCORED_SETS
    read = [
        replace(one, family=name, references=one.references if scored else (None,) * len(one.turns))
        for one in reading.conversations
    ]
    note = f"{name} is a family of its own{'' if scored else ', which is not scored'}"
    return Reading(conversations=read, notes=(*reading.notes, note))


def _name(table: NumberedRows) -> str:
    return table.where.rpartition(",")[0]


def _notes(
    table: str,
    conversations: Sequence[Conversation],
    prompts: Sequence[RowPrompt],
    left_out: Sequence[str],
    unread: Sequence[str],
) -> list[str]:
    shapes = Counter(one.shape for one in prompts)
    families = Counter(conversation.family for conversation in conversations)
    if families.keys() == {"mt_bench"} and SPEC in shapes:
        shapes = Counter({"MT-bench": shapes.pop(SPEC), **shapes})
    text = ", ".join(f"{name} ({num})" if len(shapes) > 1 else name for name, num in shapes.items())
    per_family = ", ".join(f"{family} {num}" for family, num in families.items())
    lines = [f"{table} is read as {text}: {_count(len(conversations))} ({per_family})"]
    num = sum(any(reply is not None for reply in one.replies[:-1]) for one in prompts)
    if num:
        lines.append(f"answers given in {_count(num)} are the history of later turns")
    if left_out:
        lines.append(f"{_count(len(left_out))} left out, e.g. {left_out[0]}")
    if unread:
        lines.append(f"fields that are not read: {', '.join(unread)}")
    return lines


def _count(num: int) -> str:
    return f"{num} conversation{'s' * (num != 1)}"


def _check_columns(table: NumberedRows, columns: Mapping[str, str]) -> None:
    present = dict.fromkeys(name for _, row in table.rows for name in row)
    there = f"columns present: {', '.join(present) or 'none'}"
    for key, name in columns.items():
        if key not in COLUMNS:
            raise ValueError(f"unknown column key {key!r}; use one of {', '.join(COLUMNS)}")
        if name not in present and not (key == "family" and name in _NAMES):
            raise ValueError(f"{_name(table)} has no column {name!r} (wanted for {key}); {there}")


def _conversation(
    prompt: RowPrompt, row: Row, stem: str, index: int, columns: Mapping[str, str]
) -> Conversation:
    answer = _cell(row, "reference", columns)
    if answer is None and any(prompt.replies):
        answer = prompt.replies
    family = _family(row, columns, answer, prompt.shape)
    number = _cell(row, "id", columns)
    system = [_cell(row, "system", columns), prompt.system]
    return Conversation(
        id=f"{stem}-{index:05d}" if number is None else f"{stem}-{number}",
        family=family,
        turns=prompt.turns,
        references=_references(answer, len(prompt.turns), family, prompt.shape),
        replies=prompt.replies,
        system="\n".join(str(text) for text in system if text is not None) or None,
    )


def _cell(row: Row, key: str, columns: Mapping[str, str]) -> Any:
    """Return a row's value for `key` from the named column, else from the first usual one."""
    return row.get(columns.get(key) or _usual(row, key))


def _usual(row: Row, key: str) -> str:
    """Return the first usual column for `key` with a value in the row, else the first of all."""
    names = COLUMNS[key]
    return next((name for name in names if row.get(name) is not None), names[0])


def _family(row: Row, columns: Mapping[str, str], reference: Any, shape: str) -> str:
    if columns.get("family") in _NAMES and columns["family"] not in row:
        return columns["family"]
    value = _cell(row, "family", columns)
    is_gsm8k = any(gsm8k_answer(text) != text for text in _texts(reference))
    if is_gsm8k and value in MT_BENCH:  # EAGLE's file calls GSM8K's questions "math"
        return "math_reasoning"
    if shape.startswith(SPEED) and isinstance(value, str) and value:
        return value
    if isinstance(value, str) and value in (*FAMILY_OF, OTHER):
        return FAMILY_OF.get(value, OTHER)
    # a column "category" often means something else, but a column "family" is ours
    if value is not None and ("family" in columns or "family" in row):
        raise ValueError(
            f"the family is {short(value)}; use one of {', '.join(_NAMES)} (or set family to "
            "one of them in the column mapping, for all rows)"
        )
    return "math_reasoning" if is_gsm8k or shape == MATH else OTHER


def _references(
    cell: Any, num_turns: int, family: str, shape: str
) -> tuple[GoldAnswer | None, ...]:
    per_turn = [cell] if num_turns == 1 else cell
    if per_turn is None or isinstance(per_turn, str):
        per_turn = [per_turn]
    if not isinstance(per_turn, Sequence) or len(per_turn) > num_turns:
        raise ValueError(
            f"the reference is {short(cell)}; give one entry for each of {num_turns} turns"
        )
    references: list[GoldAnswer | None] = []
    for answers in map(_texts, per_turn):
        if family == "math_reasoning":
            answers = [gsm8k_answer(answer) for answer in answers]
        if family == "translation" and shape == SPEC:
            answers = [_moses().detokenize(answer.split()) for answer in answers]
        kept = tuple(answer for answer in answers if answer.strip())
        references.append(GoldAnswer(answers=kept) if kept else None)
    return (*references, *[None] * (num_turns - len(references)))


def _texts(cell: Any) -> list[str]:
    """Return all accepted answers in a cell, at any depth."""
    if cell is None:
        return []
    if isinstance(cell, str | int | float):
        return [str(cell)]
    if isinstance(cell, Mapping):
        return _texts([cell[key] for key in ("text", "value", "aliases") if key in cell])
    if isinstance(cell, Sequence):
        return [text for item in cell for text in _texts(item)]
    raise ValueError(f"the reference is {short(cell)}; it must be text, a number, or a list")


@functools.cache
def _moses() -> Any:
    """Return the detokeniser of English text by the rules of Moses."""
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang="en")
