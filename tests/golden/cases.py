"""The golden cases: the records, and the commands that are run on them."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RECORDS = HERE / "records"
FOLDERS = sorted(folder.name for folder in RECORDS.iterdir())
PUBLISHED = ("batch-size", "executors", "machines-and-clusters", "sync-async")
REPRODUCED = ("batch-size", "executors", "machines-and-clusters", "ml-parameters", "sync-async", "tf-on-spark")
STUDIES = {
    f"{kind}-{path.stem}": path
    for kind, place, pattern in (
        ("studies", ROOT / "studies", "*.toml"),
        ("golden", HERE / "studies", "*.toml"),
        ("reproduce", ROOT / "src", "trainoff/**/studies/*/*.toml"),
    )
    for path in sorted(place.glob(pattern))
}
PLUGINS = [
    line.partition(" = ")[0]
    for line in (HERE.parent / "plugin" / "misbehaving-1.0.dist-info" / "entry_points.txt").read_text().splitlines()
    if " = " in line
]

# Commands that print JSON; folders are those of `records`.
COMMANDS: dict[str, tuple[str, ...]] = {
    "engines": ("engines",),
    "workloads": ("workloads",),
    "data-list": ("data", "list"),
    "reproduce-list": ("reproduce",),
    "show-published-batch-size": ("show", "published:batch-size"),
    "show-published-sync-async": ("show", "published:sync-async"),
    "compare-best": ("compare", "records/engines"),
    "compare-best-train-s": ("compare", "records/engines", "--figure", "train_s"),
    "compare-best-models": ("compare", "records/models"),
    "compare-best-at-target": ("compare", "records/engines", "--target", "0.6"),
    "compare-two-engines": ("compare", "records/engines", "--engines", "numpy", "torch"),
    "compare-two-engines-network": (
        *("compare", "records/engines", "--engines", "torch-ddp", "ray-torch"), "--figure", "network_bytes"
    ),
    "compare-two-folders": ("compare", "records/engines", "records/again"),
    "compare-two-folders-memory": ("compare", "records/engines", "records/again", "--figure", "peak_memory_bytes"),
    "compare-faults": ("compare", "records/faults", "--figure", "cold_s"),
    "compare-published": ("compare", "published:machines-and-clusters", "--figure", "train_s"),
    "compare-published-engines": (
        *("compare", "published:executors", "--engines", "spark-sklearn", "dask-sklearn"), "--figure", "train_s"
    ),
    "scale": ("scale", "records/engines"),
    "scale-at": ("scale", "records/engines", "--at", "4", "8", "--minutes", "5"),
    "scale-hold-out": ("scale", "published:machines-and-clusters", "--hold-out", "5"),
    "scale-cold": ("scale", "records/lab", "--figure", "cold_s"),
    "scale-per-1000": ("scale", "records/lab", "--figure", "per_1000_samples"),
    "scale-target": ("scale", "records/engines", "--target", "0.8", "--at", "2", "4"),
    "scale-lab": ("scale", "records/lab", "--minutes", "10"),
    "scale-without-a-curve": ("scale", "records/statuses"),
    "scale-published": ("scale", "published:machines-and-clusters"),
    "advise": ("advise", "records/engines"),
    "advise-target": ("advise", "records/engines", "--target", "0.6"),
    "advise-cold": ("advise", "records/engines", "--target", "0.8", "--cold"),
    "advise-nodes": ("advise", "records/engines", "--target", "0.8", "--engine", "torch-ddp", "--nodes", "4"),
    "advise-seconds": ("advise", "records/engines", "--target", "0.8", "--max-seconds", "0.02"),
    "advise-cost": ("advise", "records/lab", "--target", "0.8", "--max-cost", "1"),
    "advise-prices": ("advise", "records/lab", "--target", "0.8", "--prices", "prices.toml"),
    "advise-which-workload": ("advise", "records/models"),
    "advise-workload": ("advise", "records/models", "--workload", "rare"),
    "advise-published": ("advise", "published:machines-and-clusters"),
    "sql-records": (
        "sql",
        "records/engines",
        "select engine, workers, seed, status, time_to_target.0.8 as s, params.train_rows as rows, phases_s.train, "
        "equivalence.verdict from records order by trial_id",
    ),
    "sql-counts": ("sql", "records/statuses", "select status, count(*) as n from records group by status order by 1"),
    "sql-curves": (
        "sql",
        "records/engines",
        "select trial_id, count(*) as n, max(accuracy) as best, min(loss) as least, max(train_s) as s, "
        "max(core_s) as core_s from curves group by trial_id order by trial_id",
    ),
    "sql-samples": (
        "sql",
        "records/engines",
        "select role, count(*) as n, max(pss) as most, sum(user_s) as user_s, max(received_bytes) as received "
        "from samples group by role order by role",
    ),
    "sql-all-three": (
        "sql",
        "records",
        "select r.study, r.engine, max(c.accuracy) as best, count(distinct s.role) as roles from records r "
        "join curves c using (trial_id) join samples s using (trial_id) group by r.study, r.engine order by 1, 2",
    ),
    "sql-published": (
        "sql",
        "published:machines-and-clusters",
        "select engine, workload, workers, train_s, cost_usd from records order by trial_id",
    ),
    "sql-mistake": ("sql", "records/engines", "select engin from records"),
}  # fmt: skip

# Commands that print text.
TEXTS: dict[str, tuple[str, ...]] = {
    **{f"show-{folder}": ("show", f"records/{folder}") for folder in FOLDERS},
    "show-prices": ("show", "records/lab", "--prices", "prices.toml"),
    "show-published": ("show", "published:executors"),
    "compare": COMMANDS["compare-two-engines"],
    "compare-best": COMMANDS["compare-best"],
    "scale": COMMANDS["scale-at"],
    "advise": COMMANDS["advise"],
    "sql": COMMANDS["sql-counts"],
    "plan": ("plan", "studies/engines-repeated.toml", "--out", "nothing"),
    "reproduce": ("reproduce",),
    "workloads": ("workloads",),
}
