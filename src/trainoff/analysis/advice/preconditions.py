"""What records cannot say, in one sentence each, with what would let them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainoff.analysis.advice.candidates import Field, Wish
from trainoff.analysis.format import count, listed, mark, quality
from trainoff.analysis.groups import by_workload, groups
from trainoff.analysis.ranking import headline_target, not_timed
from trainoff.analysis.scaling import curves, rows_of
from trainoff.errors import TrainoffError
from trainoff.records import METRICS, Record
from trainoff.study.suggestions import quote, suggest


def one_workload(records: Sequence[Record], wanted: str | None) -> list[Record]:
    """The records of the workload that is asked for, or of the only one."""
    names = list(dict.fromkeys(record.workload for record in records))
    if wanted is None:
        if len(names) > 1:
            raise TrainoffError(f"there are runs of {listed(names)}; say which with --workload {names[0]}")
        return list(records)
    if wanted not in names:
        raise TrainoffError(
            f"--workload {quote(wanted)}: no run of it here; {suggest(wanted, names, 'there are runs of')}"
        )
    return [record for record in records if record.workload == wanted]


def known_target(records: Sequence[Record], target: float | None) -> float:
    """The target that is asked for, if it was timed; without one, the hardest that most settings reached."""
    timed = sorted({each for record in records for each in record.targets})
    metric = METRICS[records[0].metric]
    if not timed:
        raise TrainoffError(
            "no target was timed here, so nothing says when a run was good enough; run a study with `targets`"
        )
    if target is None:
        (own,) = by_workload(groups(records))
        found = headline_target(own)
        return found if found is not None else (min if metric.higher else max)(timed)
    if not any(str(target) in record.time_to_target for record in records):
        raise not_timed(records, target)
    return target


def known_wish(records: Sequence[Record], wish: Wish) -> None:
    """Refuse an engine, a machine or a size of node that no run had."""
    engines = list(dict.fromkeys(record.engine for record in records))
    if wish.engine is not None and wish.engine not in engines:
        raise TrainoffError(
            f"--engine {quote(wish.engine)}: no run of it here; {suggest(wish.engine, engines, 'there are runs of')}"
        )
    own = [record for record in records if wish.engine in (None, record.engine)]
    machines = list(dict.fromkeys(str(name) for record in own if (name := record.params.get("machine"))))
    if wish.machine is not None and not machines:
        raise TrainoffError(f"--machine {quote(wish.machine)}: no run here names its machine; leave it out")
    if wish.machine is not None and wish.machine not in machines:
        raise TrainoffError(
            f"--machine {quote(wish.machine)}: no run was made on it, and nothing says how times go from one type to "
            f"another; {suggest(wish.machine, machines, 'there are runs on')}"
        )
    cores = sorted({record.cores for record in own})
    if wish.cores is not None and wish.cores not in cores:
        told = ", ".join(f"{each:g}" for each in cores)
        raise TrainoffError(
            f"--cores {wish.cores:g}: runs were made with {told} per node, and nothing says how times go with cores"
        )
    if not any(wish.holds(record) for record in records):
        raise TrainoffError("no run has all of --engine, --machine and --cores as you ask; leave one of them out")


def why_nothing(field: Field, records: Sequence[Record], target: float, wish: Wish) -> str:
    """Why there is nothing to choose among."""
    kept = [record for record in records if wish.holds(record)]
    goal = mark(kept[0].metric, target)
    if not any(record.time_to_target.get(str(target)) is not None and record.status == "ok" for record in kept):
        return f"not enough evidence: no run reached {goal}{_closest(kept)}"
    if wish.nodes is not None and (why := _nodes(kept, wish.nodes)):
        return why
    rows = sorted({rows_of(record) for record in kept})
    if wish.rows is not None and len(rows) == 1:
        told = f"{rows[0]:,.0f} rows" if rows[0] > 1 else "as many rows as there are"
        return f"--rows {wish.rows:g}: all runs had {told}, and a prediction needs two numbers of them"
    if wish.rows is not None and (why := _rows(kept, wish.rows, target)):
        return why
    if field.never:
        return (
            f"not enough evidence: what you ask for was run and did not reach {goal}{_closest(field.never[0].records)}"
        )
    return f"nothing here says how long that would take to {goal}: no engine was run with all else alike"


def _nodes(kept: Sequence[Record], nodes: int) -> str | None:
    every = curves(kept)
    if all(not curve.spreads for curve in every if curve.records):
        names = listed(list(dict.fromkeys(record.engine for record in kept)))
        return f"--nodes {nodes}: {names} ran on one node by itself and cannot be spread over more"
    if all(len(curve.counts) < 2 for curve in every):
        counts = sorted({record.workers for record in kept})
        told = " or ".join(count(each, "node") for each in counts)
        lack = f"nothing was run with two numbers of nodes and all else alike (only {told})"
        return f"--nodes {nodes}: {lack}, so there is no model to predict by"
    return None


def _rows(kept: Sequence[Record], asked: float, target: float) -> str | None:
    """That so few rows, or more, were not enough."""
    reached = {rows_of(record) for record in kept if record.time_to_target.get(str(target)) is not None}
    few = [each for record in kept if asked <= (each := rows_of(record)) < min(reached)]
    goal = mark(kept[0].metric, target)
    return f"not enough evidence: with {max(few):,.0f} rows no run reached {goal}" if few else None


def _closest(records: Iterable[Record]) -> str:
    """How far the best of some runs came."""
    known = [(record, record.result) for record in records if record.status == "ok" and record.result is not None]
    if not known:
        return "; none of them ended well, and `trainoff show` says why"
    metric = METRICS[known[0][0].metric]
    best, result = min(known, key=lambda one: metric.badness(one[1]))
    return f"; {best.engine} came closest with {metric.name} {quality(result)}"
