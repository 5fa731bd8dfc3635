"""Makes `python -m longattn` the same as `longattn`."""

from __future__ import annotations

import sys

from longattn.cli import main

if __name__ == "__main__":
    sys.exit(main())
