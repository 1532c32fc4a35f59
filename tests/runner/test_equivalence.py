"""The cache of the reference's weights."""

import numpy as np
import pytest

from helpers.training import make_job
from trainoff.runner.equivalence import reference_weights


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no archive"])
def test_damaged_reference_weights_are_computed_again(tmp_path, monkeypatch, content):
    monkeypatch.setenv("TRAINOFF_CACHE", str(tmp_path))
    job = make_job()
    computed = reference_weights(job)
    (path,) = (tmp_path / "reference").iterdir()
    intact = path.read_bytes()
    path.write_bytes(content)
    again = reference_weights(job)
    assert path.read_bytes() == intact
    for step, weights in computed.items():
        for one, other in zip(weights, again[step], strict=True):
            np.testing.assert_allclose(one, other)
