"""Write pools, generated parts, tables and a figure: `python -m docs.generate`."""

from __future__ import annotations

import sys

from bench.extras.sessions.pooled import POOL, load_pool, write_pool
from docs.generate import claims, machines
from docs.generate.parts import write
from docs.generate.places import text_of
from docs.generate.runs import STORED

for pool in sorted(STORED.glob(f"*/{POOL}")):
    write_pool(load_pool([str(pool.parent)], pool.parent), pool.parent)
sys.stdout.writelines(f"{path}: renewed\n" for path in write())
machines.FIGURE.write_bytes(machines.picture(text_of("README.md")))
sys.stdout.writelines(f"no longer holds: {line}\n" for line in claims.broken())
