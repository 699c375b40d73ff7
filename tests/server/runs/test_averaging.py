"""Jobs with ``[iterate_averaging]``."""

from __future__ import annotations

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs import parse_job
from atoll.server.runs.submission import check_averaging
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.server.runs.federation import job

AVERAGING = b"\n[iterate_averaging]\ndecay = 0.9\n"


def layout(*dtypes: Dtype) -> Layout:
    return Layout(tuple(TensorSpec(f"t{number}", (3,), dtype) for number, dtype in enumerate(dtypes)))


@pytest.mark.parametrize("narrow", [Dtype.BFLOAT16, Dtype.FLOAT16])
def test_a_mean_of_sixteen_bits_is_refused(narrow: Dtype) -> None:
    with pytest.raises(InvalidRequestError, match=r"tensor 't1' is .*float16: a mean of models needs float32") as found:
        check_averaging(parse_job(job() + AVERAGING), layout(Dtype.FLOAT32, narrow))
    assert found.value.detail.code == "job.iterate_averaging"


def test_wider_tensors_and_jobs_without_a_mean_are_taken() -> None:
    check_averaging(parse_job(job() + AVERAGING), layout(Dtype.FLOAT32, Dtype.FLOAT64))
    check_averaging(parse_job(job()), layout(Dtype.BFLOAT16))
