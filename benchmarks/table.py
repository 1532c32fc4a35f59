"""The time to make a table of 10,000 records: read every folder, check every field, build the frame.

python benchmarks/table.py [--records 10000]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from trainoff.api import run
from trainoff.records import scan, table

MOST_S = 2.0
STUDY = 'name = "table"\nworkload = "digits-mlp"\nengines = ["numpy"]\n[params]\nepochs = 2\n'


def multiply(record: Path, folder: Path, times: int) -> None:
    """Copy one real record, each time with another name and seed."""
    values = json.loads(record.read_text())
    for number in range(times):
        values["trial_id"], values["seed"] = f"numpy-{number:012x}", number
        one = folder / values["trial_id"]
        one.mkdir()
        (one / "record.json").write_text(json.dumps(values, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description="The time to make a table of many records.")
    parser.add_argument("--records", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "table.toml"
        study.write_text(STUDY)
        results = run(study, Path(folder) / "one")
        many = Path(folder) / "many"
        many.mkdir()
        multiply(next(results.folder.glob("*/record.json")), many, options.records)
        start = time.monotonic()
        records, damaged = scan(many)
        read = time.monotonic()
        frame = table(records)
        end = time.monotonic()
    print(f"{frame.height:,} records: {read - start:.2f} s to read, {end - read:.2f} s to tabulate, at most {MOST_S} s")
    return 0 if end - start <= MOST_S and not damaged else 1


if __name__ == "__main__":
    sys.exit(main())
