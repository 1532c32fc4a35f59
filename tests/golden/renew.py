"""Write the golden answers anew, after a change that is meant: `python tests/golden/renew.py [NAME ...]`.

`git diff tests/golden/expected` then shows what the change did. A name chooses the answers that begin with it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from golden.answers import ANSWERS, EXPECTED, answer, dumped


def main(wanted: list[str]) -> None:
    """Write the answers that are wanted, and remove those of questions that nobody asks any more."""
    EXPECTED.mkdir(exist_ok=True)
    for path in EXPECTED.glob("*.json"):
        if path.stem not in ANSWERS:
            path.unlink()
    with tempfile.TemporaryDirectory() as place:
        os.environ["TRAINOFF_CACHE"] = f"{place}/cache"
        for name in ANSWERS:
            if wanted and not name.startswith(tuple(wanted)):
                continue
            scratch = Path(place, name)
            scratch.mkdir()
            (EXPECTED / f"{name}.json").write_text(dumped(answer(name, scratch)) + "\n")
            print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
