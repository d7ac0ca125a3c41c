"""Row-invariant numerics (`decoders.core.hf.tiles`): which cells use them, and their tile size.

Unless the user gives a tile size, the fastest one on calls of usual widths is taken. The model is
then checked bit for bit: its rows must not depend on the other rows of a call.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import torch

from bench.errors import UnavailableError, UsageError, as_error
from bench.plan.select import ResolvedRun
from decoders.core.decoder import Decoder, SelfDriven
from decoders.core.engine.models import Models
from decoders.core.hf import tiles

if TYPE_CHECKING:
    from decoders.core.hf.model import HFModel

TILES = (8, 16, 32)
_ROWS = (1, 5, 9, 17)
"""Widths of usual calls, equally weighted: AR's, and those of verifying calls."""
_TRIED = 10
"""Rows compared bit for bit: some calls of five have rows on both sides of a block's end."""
_TIMED = 5


def uses_tiles(run: ResolvedRun) -> bool:
    """Return whether any cell of the run computes in tiles (`UsageError` if it cannot)."""
    config = run.config
    if "invariant" not in (config.numerics, *map(run.numerics, run.decoders)):
        if config.tile is not None:
            line = f"--tile {config.tile} is for row-invariant numerics; add --numerics invariant"
            raise UsageError(line)
        return False
    refusals = (
        (config.compile, "--compile", "compiles a graph per shape, and each may round differently"),
        (config.attention == "eager", "--attention eager", "does not attend in tiles"),
    )
    for applies, option, why in refusals:
        if applies:
            raise UsageError(f"{option} {why}: leave it out, or use --numerics fast")
    return True


def check_tiles(cell: str, decoder: Decoder, numerics: str) -> None:
    """Refuse a self-driven decoder in tiles, as its calls have any length (`UsageError`)."""
    if numerics == "invariant" and isinstance(decoder, SelfDriven):
        raise UsageError(
            f"decoder {cell!r} runs its own loop, whose calls have any number of rows, so it has "
            "no row-invariant numerics; give it numerics=fast, or leave it out"
        )


def in_tiles(target: HFModel, draft: HFModel | None, tile: int | None) -> tuple[Models, int]:
    """Return tiled models and the tile, the fastest if None (`UnavailableError`: rows differ)."""
    with as_error(UnavailableError):
        if tile is None:
            seconds = {tile: _seconds(target.in_tiles(tile)) for tile in TILES}
            tile = min(TILES, key=lambda tile: seconds[tile])
        models = [None if model is None else model.in_tiles(tile) for model in (target, draft)]
        failed = next((model for model in models if model is not None and not holds(model)), None)
    if failed is not None:
        raise UnavailableError(
            f"rows of {type(failed.module).__name__} in {failed.facts['dtype']} are not computed "
            f"identically in tiles of {tile} rows here; try another --tile, or --numerics fast"
        )
    whole = models[0]
    assert whole is not None
    return Models(target=whole, draft=models[1]), tile


def holds(model: HFModel) -> bool:
    """Return whether rows are bit for bit the same in calls of one, five and all rows."""
    text = max(1, min(tiles.BLOCK + _TRIED - 3, model.max_length) - _TRIED)
    ids = [(7919 * n + 3) % model.vocab_size for n in range(text + _TRIED)]
    one = _read(model, ids, [text, *[1] * _TRIED])
    cuts = ([text + _TRIED], [text, *[5] * (_TRIED // 5)])
    return all(torch.equal(one, _read(model, ids, cut)) for cut in cuts)


def _read(model: HFModel, ids: list[int], cut: list[int]) -> torch.Tensor:
    """Return logits ``[_TRIED, V]`` of the last rows, with calls of the row counts in `cut`."""
    Models(target=model).ensure(1, len(ids))
    session = model.open()
    try:
        start, parts = 0, []
        for num in cut:
            call = session.call(ids[start : start + num], output="logits", read=range(num))
            parts.append(model.forward([call]))
            start += num
        return torch.cat(parts)[-_TRIED:]
    finally:
        model.close(session)


def _seconds(model: HFModel) -> float:
    """Return the summed median times of one call of each usual width."""
    Models(target=model).ensure(1, sum(_ROWS) * _TIMED)
    session = model.open()
    try:
        total = 0.0
        for rows in _ROWS:
            times = []
            for _ in range(_TIMED):
                start = time.perf_counter()
                model.forward([session.call([1] * rows, output="logits")]).argmax().item()
                times.append(time.perf_counter() - start)
            total += median(times[1:])
        return total
    finally:
        model.close(session)
