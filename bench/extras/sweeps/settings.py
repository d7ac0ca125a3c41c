"""Read a sweep: the points of the grids in a TOML file.

The file is a configuration for ``--config`` with an additional grid ``[sweep]``, or several
``[[sweep]]``. In a grid, a list is an axis, and any other value replaces the configuration's. A
decoder's options are in a table named after its cell. The points are all combinations of each grid,
without duplicates.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import UsageError, did_you_mean
from bench.settings.config import RunConfig, as_text, load_config, read_toml
from bench.text import counted

GRIDS = "sweep"
"""Key of the grids in a file."""
ALWAYS = ("batch_size", "temperature", "max_new_tokens")
"""Settings shown for every point, even if they are not axes."""
_NO_AXIS = ("decoders", "adapters", "models", "columns", "run_name", "protocol", "reference")
_LABEL_LENGTH = 48

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold one combination: its number (from 1), its run's configuration, its values on axes.

    An axis is a setting or ``CELL.OPTION``; a point without this cell has the value None. `label`
    names the point's values on the axes of its grid.
    """

    number: int
    label: str
    config: RunConfig
    values: Values

    @property
    def name(self) -> str:
        """Name of the point's run, unique in the sweep."""
        assert self.config.run_name is not None
        return self.config.run_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Hold the points of a file, in order, and the axes of its grids."""

    stem: str
    content: Values
    axes: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def folder_name(self) -> str:
        """Name of the folder, the same for the same file, so that a sweep can be resumed."""
        digest = hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()[:4]
        return f"{'' if self.stem == GRIDS else 'sweep-'}{self.stem}-{digest}"

    def describe(self) -> str:
        """Return the number of points and their axes, in words."""
        sizes = {
            axis: len({json.dumps(point.values.get(axis)) for point in self.points})
            for axis in self.axes
        }
        axes = ", ".join(f"{axis} ({num})" for axis, num in sizes.items() if num > 1)
        return counted(len(self.points), "point") + (f": {axes}" if axes else "")


def load_sweep(file: Path) -> Sweep:
    """Read the sweep of a TOML file (`UsageError` without a valid sweep and configuration)."""
    content = read_toml(file)
    grids = content.get(GRIDS)
    listed = [grids] if isinstance(grids, Mapping) else grids
    if not isinstance(listed, list) or not all(isinstance(g, Mapping) and g for g in listed):
        raise UsageError(f"{file} has no [{GRIDS}] table of axes, e.g. batch_size = [1, 4]")
    base = {key: value for key, value in content.items() if key != GRIDS}
    combinations: dict[str, tuple[RunConfig, dict[str, Any], str]] = {}
    axes: dict[str, None] = {}
    for grid in listed:
        for values, label in _combinations(base, grid, axes):
            plain = load_config(None, values)
            combinations.setdefault(plain.to_toml(), (plain, values, label))
    points = []
    for number, (plain, values, label) in enumerate(combinations.values(), start=1):
        settings, cells = plain.model_dump(), plain.decoders or {}
        on_axes = {}
        for axis in dict.fromkeys((*ALWAYS, *axes)):
            cell, dot, option = axis.rpartition(".")
            on_axes[axis] = cells.get(cell, {}).get(option) if dot else settings[axis]
        name = f"p{number:03d}-{_slug(label)[:_LABEL_LENGTH]}".rstrip("-")
        config = load_config(None, {**values, "run_name": name})
        points.append(Point(number=number, label=label, config=config, values=on_axes))
    stem = _slug(file.stem)
    return Sweep(stem=stem, content=content, axes=tuple(axes), points=tuple(points))


def _combinations(
    base: Values, grid: Values, axes: dict[str, None]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield values and label of each point of a grid, last axis fastest, and extend `axes`."""
    fixed = {**base, **{key: grid[key] for key in ("decoders",) if key in grid}}
    varied: dict[str, Sequence[Any]] = {}
    for key, value in grid.items():
        if key == "decoders":
            continue
        if isinstance(value, Mapping):
            varied |= {f"{key}.{name}": _listed(key, each) for name, each in value.items()}
        elif key in RunConfig.model_fields and key not in _NO_AXIS:
            varied[key] = _listed(key, value)
        else:
            names = [name for name in RunConfig.model_fields if name not in _NO_AXIS]
            hint = did_you_mean(key, names)
            raise UsageError(f"{key!r} is not an axis of a sweep; {hint}, or [{GRIDS}.DECODER]")
    for axis in varied:
        axes.setdefault(axis)
    for combination in itertools.product(*varied.values()):
        at = dict(zip(varied, combination, strict=True))
        parts = [f"{axis} {value}" for axis, value in at.items() if len(varied[axis]) > 1]
        yield _combined(fixed, at), ", ".join(parts)


def _listed(key: str, value: Any) -> Sequence[Any]:
    if isinstance(value, list) and not value:
        raise UsageError(f"axis {key!r} of the sweep is empty; give it values")
    return value if isinstance(value, list) else [value]


def _combined(fixed: Values, at: Values) -> dict[str, Any]:
    values = {**fixed, **{key: value for key, value in at.items() if "." not in key}}
    options = {key: value for key, value in at.items() if "." in key}
    if options:
        decoders = load_config(None, fixed).decoders or {}
        cells = {cell: dict(each) for cell, each in decoders.items()}
        for axis, value in options.items():
            cell, _, option = axis.rpartition(".")
            if cell not in cells:
                line = f"axis {axis!r}: the sweep names no decoder {cell!r}"
                raise UsageError(f"{line}; {did_you_mean(cell, cells)}")
            cells[cell][option] = as_text(value)
        values["decoders"] = cells
    return values


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+@-]+", "-", text) or GRIDS
