"""Event files for TensorBoard, written by the process that leads."""

from __future__ import annotations

from trainoff.engines.shared.control_channel import Leader, Number
from trainoff.engines.shared.snapshots import Pace


class Chronicler(Leader):
    """A leader that also writes down what it tells: the loss and the samples seen, at the step."""

    def __init__(self, number: Number, pace: Pace, folder: str) -> None:
        import tensorflow as tf

        super().__init__(number, pace)
        self._tf = tf
        self._writer = tf.summary.create_file_writer(folder)

    def told(self, step: int, loss: float | None, samples_seen: int) -> None:
        tf = self._tf
        with self._writer.as_default(step=step):
            if loss is not None:
                tf.summary.scalar("loss", loss)
            tf.summary.scalar("samples_seen", samples_seen)
        self._writer.flush()
