"""Write the golden outputs again after an intended change: `python tests/golden/renew.py [NAME ...]`.

`git diff tests/golden/expected` then shows the effect. A name selects the cases that begin with it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from golden.outputs import CASES, EXPECTED, dumped, output_of


def main(wanted: list[str]) -> None:
    """Write the selected outputs, and remove files without a case."""
    EXPECTED.mkdir(exist_ok=True)
    for path in EXPECTED.glob("*.json"):
        if path.stem not in CASES:
            path.unlink()
    with tempfile.TemporaryDirectory() as place:
        os.environ["TRAINOFF_CACHE"] = f"{place}/cache"
        for name in CASES:
            if wanted and not name.startswith(tuple(wanted)):
                continue
            scratch = Path(place, name)
            scratch.mkdir()
            (EXPECTED / f"{name}.json").write_text(dumped(output_of(name, scratch)) + "\n")
            print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
