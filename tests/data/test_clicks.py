"""The generated click log: the same rows on every machine, any size, a known best possible error."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from trainoff import data
from trainoff.data import Csr, Order, cache, clicks
from trainoff.data.clicks import CATEGORIES, NUMBERS, ClickLog, Fields, best_metrics
from trainoff.data.dataset import silent
from trainoff.errors import TrainoffError
from trainoff.models import auc
from trainoff.models.logreg import log_odds

SMALL = "clicks:rows=20000,test_rows=5000"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINOFF_CACHE", str(tmp_path / "cache"))


def dense(x: Csr, columns: int) -> np.ndarray:
    """Return the first columns of sparse rows as a matrix."""
    out = np.zeros((len(x), columns), np.float32)
    rows, compact = x.row_numbers(), x.compact()
    kept = compact.columns < columns
    out[rows[kept], compact.columns[kept]] = compact.values[kept]
    return out


def test_rows_have_the_form_of_a_click_log():
    log = data.get(SMALL)
    x = log.x_train
    assert log.sparse
    assert (x.shape, len(log.x_test), log.classes) == ((20_000, 1 << 18), 5_000, 2)
    assert 36 < x.nonzeros / len(x) < 39
    assert x.values.min() > 0
    assert x.values.max() == 1
    assert 0.24 < log.y_train.mean() < 0.26
    rows = x.row_numbers()
    assert (np.diff(x.columns)[np.diff(rows) == 0] > 0).all(), "columns ascend without duplicates"
    numbers = dense(x, len(NUMBERS))
    more = (numbers == 0).mean(axis=0) - [field[2] / 1000 for field in NUMBERS]
    assert more.min() > -0.02, "the specified share of values is missing"
    assert more.max() < 0.08, "and a few are 0"
    assert (x.values[x.columns >= len(NUMBERS)] == 1).all()


def test_category_frequencies_are_very_unequal():
    x = data.get(SMALL).x_train
    counts = np.sort(np.bincount(x.columns[x.columns >= len(NUMBERS)], minlength=x.width))[::-1]
    assert counts[0] > 5_000
    assert (counts == 1).sum() > 10_000
    sizes = sorted(size for size, _ in CATEGORIES)
    assert (sizes[0], sizes[-1]) == (3, 400_000)


def test_rows_are_the_same_on_every_machine():
    made = clicks.make(ClickLog(rows=10_000, test_rows=500, bits=12, seed=5), None, silent)
    digest = hashlib.sha256()
    for part in (made.x_train.starts, made.x_train.columns, made.x_train.values, made.y_train, made.y_test):
        digest.update(part.tobytes())
    assert digest.hexdigest()[:16] == "04b3df282c7248f8"


def test_a_smaller_log_is_the_beginning_of_a_larger_one():
    small, large = (clicks.make(ClickLog(rows=rows, test_rows=300), None, silent) for rows in (1_000, 9_000))
    for ours, theirs in ((small.x_train, large.x_train[:1_000].compact()), (small.x_test, large.x_test)):
        assert np.array_equal(ours.starts, theirs.starts)
        assert np.array_equal(ours.columns, theirs.columns)
        assert np.array_equal(ours.values, theirs.values)
    assert np.array_equal(small.y_train, large.y_train[:1_000])
    assert small.facts == large.facts


def test_another_seed_makes_other_rows_and_another_equally_strong_click_model():
    one, two = (clicks.make(ClickLog(rows=1_000, test_rows=20_000, seed=seed), None, silent) for seed in (1, 2))
    assert not np.array_equal(one.x_test.columns[:1000], two.x_test.columns[:1000])
    for made in (one, two):
        assert made.facts["best_error"] == pytest.approx(0.165, abs=0.005)
        assert made.y_test.mean() == pytest.approx(0.25, abs=0.01)


def test_the_best_possible_error_follows_from_the_probabilities():
    p = np.array([0.1, 0.2, 0.7, 0.4])
    facts = best_metrics(p)
    assert facts["best_error"] == pytest.approx(np.mean([0.1, 0.2, 0.3, 0.4]))
    rng = np.random.default_rng(0)
    p = rng.beta(1, 3, 200_000)
    y, z, facts = (rng.random(len(p)) < p).astype(int), np.log(p / (1 - p)), best_metrics(p)
    assert facts["best_error"] == pytest.approx(((z > 0) != y).mean(), abs=0.005)
    assert facts["best_log_loss"] == pytest.approx(np.logaddexp(0, np.where(y == 1, -z, z)).mean(), abs=0.005)
    assert facts["best_auc"] == pytest.approx(auc(z, y), abs=0.005)


def test_training_approaches_the_best_possible_error():
    log = data.get("clicks:rows=40000,test_rows=10000")
    weights, bias = np.zeros(log.x_train.width, np.float32), np.zeros(1, np.float32)
    for _, rows in Order("any", len(log.x_train), 100, 2, seed=1).batches():
        x = log.x_train[rows]
        gradient = (1 / (1 + np.exp(-log_odds({"weight": weights, "bias": bias}, x))) - log.y_train[rows]) / len(rows)
        np.subtract.at(weights, x.columns, 2.0 * x.values * gradient[x.row_numbers()])
        bias -= 2.0 * gradient.sum()
    error = ((log_odds({"weight": weights, "bias": bias}, log.x_test) > 0) != log.y_test).mean()
    base, floor = log.y_test.mean(), log.facts["best_error"]
    assert floor < error < base - 0.4 * (base - floor)


def test_facts_and_arrays_are_cached():
    log = data.get(SMALL)
    assert data.load(SMALL).facts == log.facts
    assert set(log.facts) == {"best_error", "best_log_loss", "best_auc"}
    for array in (log.x_train.starts, log.x_train.columns, log.x_train.values):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
    head = log.head(10)
    assert (len(head.x_train), len(head.y_train), head.x_train.nonzeros) == (10, 10, int(log.x_train.starts[10]))
    assert np.shares_memory(head.x_train.values, log.x_train.values)
    assert all(whole for _, whole, _ in data.verify())


def test_the_catalogue_lists_logs_of_any_size():
    data.get("clicks:seed=7,rows=1000")
    entries = {entry.name: entry for entry in data.catalogue()}
    assert not entries["clicks"].cached
    assert entries["clicks"].bytes == pytest.approx(78e6, rel=0.01)
    mine = entries["clicks:rows=1000,seed=7"]
    assert (mine.train_rows, mine.test_rows, mine.features, mine.classes) == (1000, 250, 1 << 18, 2)
    stored = sum(path.stat().st_size for path in (cache.root() / "data").rglob("*.npy"))
    assert mine.bytes == pytest.approx(stored, rel=0.02)


def test_equal_options_give_one_identity():
    usual = data.identity("clicks")
    assert data.identity("clicks:seed=1,bits=18") == usual
    assert data.identity("clicks:rows=200_000,test_rows=50000") == usual
    others = [data.identity(f"clicks:{one}") for one in ("seed=2", "bits=17", "rows=200001", "test_rows=49999")]
    assert len({usual, *others}) == 5
    assert clicks.recipe("seed=3,rows=4000").name == "clicks:rows=4000,seed=3"
    assert clicks.recipe("rows=4000,test_rows=1000").name == "clicks:rows=4000"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("clicks:rwos=5", "clicks has no option 'rwos'; expected rows, test_rows, bits, seed, as in rows="),
        ("clicks:rows=many", "clicks: rows is 'many'; expected a whole number from 1,000 to 1,000,000,000"),
        ("clicks:rows=-5", "clicks: rows is '-5'; expected a whole number from 1,000"),
        ("clicks:bits=64", "clicks: bits is '64'; expected a whole number from 10 to 24"),
        ("clicks:rows", "clicks: rows is ''; expected a whole number"),
        ("clicks:rows=1000,rows=2000", "clicks: rows is given twice"),
        ("mnist:rows=1000", "mnist has no option 'rows'; expected none"),
        ("click:rows=1000", "there is no dataset 'click'; did you mean clicks?"),
    ],
)
def test_a_mistake_in_a_name_is_an_error(name: str, sentence: str):
    with pytest.raises(TrainoffError) as caught:
        data.identity(name)
    assert str(caught.value).startswith(sentence)


def test_categorical_fields_share_the_columns_after_the_numbers():
    fields = Fields(1 << 10)
    for columns, (size, _) in zip(fields.columns, CATEGORIES, strict=True):
        assert len(columns) == size + 1
        assert columns[:-1].min() >= len(NUMBERS)
        assert columns[:-1].max() < 1 << 10
        assert columns[-1] == 1 << 10
