"""Write generated parts, tables, numbers and the README's figure: `python -m docs.generate`."""

from __future__ import annotations

import sys

from docs.generate import figures, machines
from docs.generate.parts import write
from docs.generate.places import text_of

sys.stdout.writelines(f"{path}: renewed\n" for path in write())
machines.FIGURE.write_bytes(machines.picture(text_of("README.md")))
figures.main()
