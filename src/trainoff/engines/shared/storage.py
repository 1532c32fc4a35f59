"""Training rows in a shared store: a folder of Parquet or TFRecord files at an address.

pyarrow opens the address (file://, s3://, gs://, hdfs://), or else fsspec. TensorFlow's wheels open local files only,
so they are not used for that.
"""

from __future__ import annotations

import platform
import tempfile
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Csr, Data
from trainoff.engines.shared.shipping import compact, expand
from trainoff.errors import TrainoffError
from trainoff.study.study import CREDENTIALS

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

PART_ROWS = 10_000  # in one file
WIDTH = "width"  # the number of features of sparse rows, in the file's metadata
TYPE = "type"  # the dtype of dense rows, there too
COMPLETE = "_SUCCESS"  # an empty file, as Spark writes it


@dataclass(frozen=True)
class Storage:
    """The rows of one dataset at an address. Both kinds of files hold a row as bytes `x` and a label `y`."""

    url: str
    kind: str  # parquet or tfrecord
    name: str  # of the dataset and its content

    @cached_property
    def _folder(self) -> tuple[FileSystem, str]:
        files, path = open_storage(self.url)
        return files, f"{path.rstrip('/')}/{self.name}.{self.kind}"

    def parts(self) -> list[str]:
        """Return the files in the order of their rows; none if they are not complete."""
        from pyarrow.fs import FileSelector

        files, path = self._folder
        found = [each.path for each in files.get_file_info(FileSelector(path, allow_not_found=True))]
        names = sorted(each for each in found if each.endswith(self.kind))
        return names if any(each.endswith(COMPLETE) for each in found) else []

    def put(self, x: Any, y: Any) -> None:
        """Write the rows unless the store has them."""
        if self.parts():
            return
        files, path = self._folder
        try:
            files.create_dir(path, recursive=True)
        except OSError as error:
            raise TrainoffError(f"storage = {self.url!r} cannot be written: {str(error).splitlines()[0]}") from error
        small = x if isinstance(x, Csr) or x.dtype == np.uint8 else compact(x)
        for number, first in enumerate(range(0, len(y), PART_ROWS)):
            rows = slice(first, first + PART_ROWS)
            _WRITE[self.kind](files, f"{path}/part-{number:05d}.{self.kind}", small[rows], np.asarray(y[rows]))
        files.open_output_stream(f"{path}/{COMPLETE}").close()

    def read(self, part: str) -> tuple[Any, NDArray[np.int64]]:
        """Return the rows of one file as stored, and their classes. Sparse rows are a `Csr`."""
        return _READ[self.kind](self._folder[0], part)

    def shares(self, rows: int, workers: int) -> list[list[tuple[str, int, int]]]:
        """Divide the rows among workers: return each worker's files, with the first and last row in each."""
        parts = self.parts()
        edges = [share * rows // workers for share in range(workers + 1)]
        found = []
        for begin, end in pairwise(edges):
            numbers = range(begin // PART_ROWS, -(-end // PART_ROWS)) if end > begin else range(0)
            inside = [(parts[at], at * PART_ROWS, (at + 1) * PART_ROWS) for at in numbers]
            found.append([(part, max(begin, low) - low, min(end, high) - low) for part, low, high in inside])
        return found

    def fetch(self, folder: Path) -> None:
        """Write all rows into local files, `x_train` and `y_train`, in their layout in memory."""
        if not (parts := self.parts()):
            raise TrainoffError(f"storage = {self.url!r} has no complete {self.name}, as seen from {platform.node()}")
        folder.mkdir(exist_ok=True)
        with (folder / "x_train").open("wb") as xs, (folder / "y_train").open("wb") as ys:
            for part in parts:
                x, y = self.read(part)
                expand(x).tofile(xs)
                y.tofile(ys)


def rows_name(data: Data) -> str:
    """Return a name for the training rows of a dataset, which differs if their content does."""
    return f"{data.name.replace('/', '_')}-{data.identity[:12]}-{len(data.y_train)}"


def refuses_storage(url: str | None) -> str | None:
    """Return why rows cannot be stored at an address, or None."""
    if (url or "").startswith("memory:"):
        return "every process has its own memory:; name a store that all processes can reach"
    if CREDENTIALS.search(url or ""):
        return "storage holds a key, which every record would show; set AWS_ACCESS_KEY_ID and the like instead"
    return None


def needs_host_network(url: str | None) -> str | None:
    """Return why a trial with rows at an address needs the host's network, or None if they are local."""
    local = (url or "/").startswith(("/", "file://"))
    return None if local else "the store of its rows is on the host's network"


def open_storage(url: str) -> tuple[FileSystem, str]:
    """Return the file system of an address and the path in it; raise TrainoffError if it cannot be opened."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    if "://" not in url and not url.startswith("/"):
        raise TrainoffError(f"storage = {url!r} cannot be opened: it is not an address such as s3://bucket/rows")
    try:
        try:
            files, path = FileSystem.from_uri(url)
        except pa.ArrowInvalid:  # not a file system of pyarrow
            import fsspec

            found, path = fsspec.core.url_to_fs(url)
            files = PyFileSystem(FSSpecHandler(found))
        files.get_file_info(path)  # raises if it cannot be reached
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        raise TrainoffError(f"storage = {url!r} cannot be opened: {str(error).splitlines()[0]}") from error
    return files, path


def _write_parquet(files: Any, path: str, x: Any, y: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(x, Csr):
        part = x.compact()
        starts = pa.array(part.starts, pa.int64())
        lists = {
            name: pa.LargeListArray.from_arrays(starts, pa.array(np.asarray(getattr(part, name))))
            for name in ("columns", "values")
        }
        table = pa.table({**lists, "y": pa.array(y)}).replace_schema_metadata({WIDTH: str(x.width)})
    else:
        # Bytes are written and read many times as fast as lists of numbers.
        raw, kind = pa.py_buffer(np.ascontiguousarray(x)), pa.binary(x.shape[1] * x.itemsize)
        rows = pa.FixedSizeBinaryArray.from_buffers(kind, len(x), [None, raw])
        table = pa.table({"x": rows, "y": pa.array(y)}).replace_schema_metadata({TYPE: x.dtype.str})
    with files.open_output_stream(path) as sink:
        pq.write_table(table, sink)


def _read_parquet(files: Any, path: str) -> tuple[Any, Any]:
    import pyarrow.parquet as pq

    with files.open_input_file(path) as source:
        table = pq.read_table(source)
    if "columns" in table.column_names:
        columns, values = (table[name].combine_chunks() for name in ("columns", "values"))
        starts = columns.offsets.to_numpy().astype(np.int64)
        width = int(table.schema.metadata[WIDTH.encode()])
        return Csr(starts, columns.values.to_numpy(), values.values.to_numpy(), width), table["y"].to_numpy()
    x = table["x"].combine_chunks()
    kind = np.dtype(table.schema.metadata[TYPE.encode()].decode())
    numbers = np.frombuffer(x.buffers()[1], kind, len(table) * x.type.byte_width // kind.itemsize)
    return numbers.reshape(len(table), -1), table["y"].to_numpy()


def _write_tfrecord(files: Any, path: str, x: Any, y: Any) -> None:
    from trainoff.engines.tensorflow import light_tensorflow

    light_tensorflow()
    from tensorflow.core.example.example_pb2 import Example
    from tensorflow.python.lib.io.tf_record import TFRecordWriter

    with tempfile.NamedTemporaryFile() as local:
        with TFRecordWriter(local.name) as writer:
            for row, label in zip(x, y, strict=True):
                example = Example()
                feature = example.features.feature
                feature["x"].bytes_list.value.append(row.tobytes())
                feature["y"].int64_list.value.append(int(label))
                feature["type"].bytes_list.value.append(row.dtype.str.encode())
                writer.write(example.SerializeToString())
        with files.open_output_stream(path) as sink:
            sink.write(Path(local.name).read_bytes())


def _read_tfrecord(files: Any, path: str) -> tuple[Any, Any]:
    from trainoff.engines.tensorflow import light_tensorflow

    light_tensorflow()
    from tensorflow.core.example.example_pb2 import Example
    from tensorflow.python.lib.io.tf_record import tf_record_iterator

    with tempfile.NamedTemporaryFile() as local:
        with files.open_input_stream(path) as source:
            Path(local.name).write_bytes(source.read())
        rows = [Example.FromString(record).features.feature for record in tf_record_iterator(local.name)]
    y = np.array([row["y"].int64_list.value[0] for row in rows], np.int64)
    raw = b"".join(row["x"].bytes_list.value[0] for row in rows)
    return np.frombuffer(raw, rows[0]["type"].bytes_list.value[0].decode()).reshape(len(y), -1), y


_WRITE = {"parquet": _write_parquet, "tfrecord": _write_tfrecord}
_READ = {"parquet": _read_parquet, "tfrecord": _read_tfrecord}
