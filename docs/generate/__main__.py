"""Write the generated parts of all pages from the code: `python -m docs.generate`."""

from __future__ import annotations

import sys

from docs.generate.parts import write

sys.stdout.writelines(f"{path}: renewed\n" for path in write())
