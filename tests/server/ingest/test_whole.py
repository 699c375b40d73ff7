from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from atoll.server.errors import ConflictError, InvalidRequestError
from atoll.server.ingest.desk import Disposition, ReportReceipt
from atoll.server.ingest.receiver import RejectedUpdateError
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.whole import commit_whole
from tests.server.ingest.uploads import SIZE, chunk_of, digest_of, grant, ref, values_of

VALUES = values_of(1)
CHUNK = chunk_of(VALUES, 0, SIZE)
DIGEST = digest_of([CHUNK])


def test_it_lies_in_the_spool_like_any_upload(spool: Spool, executor: ThreadPoolExecutor) -> None:
    done = commit_whole(spool, ref(), grant(), DIGEST, CHUNK, executor)
    assert (done.digest, done.payload_bytes) == (DIGEST, 4 * SIZE)
    assert done.norm == pytest.approx(float(np.linalg.norm(VALUES.astype(np.float64))))
    at = ref()
    with spool.committed(at.run, at.round, at.attempt, at.participant, DIGEST) as upload:
        (record,) = upload.records
        np.testing.assert_array_equal(np.frombuffer(upload.payload(record), np.float32), VALUES)


def test_the_same_again_is_the_same_upload(spool: Spool, executor: ThreadPoolExecutor) -> None:
    """Its answer was lost: the participant sends everything once more."""
    assert commit_whole(spool, ref(), grant(), DIGEST, CHUNK, executor) == commit_whole(
        spool, ref(), grant(), DIGEST, CHUNK, executor
    )
    assert len(spool.received(ref())) == 1


def test_what_is_not_the_whole_update_is_not_committed(spool: Spool, executor: ThreadPoolExecutor) -> None:
    half = chunk_of(VALUES, 0, SIZE - 1)
    with pytest.raises(InvalidRequestError, match="missing"):
        commit_whole(spool, ref(), grant(), digest_of([half]), half, executor)
    with pytest.raises(InvalidRequestError, match="reported was"):
        commit_whole(spool, ref(number=2), grant(), "0" * 64, CHUNK, executor)


def test_it_is_inspected_as_any_chunk(spool: Spool, executor: ThreadPoolExecutor) -> None:
    wrong = VALUES.copy()
    wrong[7] = np.nan
    chunk = chunk_of(wrong, 0, SIZE)
    with pytest.raises(RejectedUpdateError, match="not finite"):
        commit_whole(spool, ref(), grant(), digest_of([chunk]), chunk, executor)


def test_who_has_reported_stores_nothing_more(spool: Spool, executor: ThreadPoolExecutor) -> None:
    receipt = ReportReceipt(Disposition.COUNTED, DIGEST)
    with pytest.raises(ConflictError):
        commit_whole(spool, ref(), grant(receipt=receipt), DIGEST, CHUNK, executor)
    assert not spool.folder(ref()).exists()
