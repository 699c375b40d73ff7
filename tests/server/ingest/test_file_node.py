from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.server.errors import UnavailableError
from atoll.server.ingest.file_node import FileNode
from atoll.server.ingest.node import IngestNode
from atoll.server.ingest.spool import Spool
from tests.server.ingest.uploads import ALICE, SIZE, chunks_of, committed, fold_item, ref, sum_key, values_of
from tests.server.ingest.worker_calls import Calls


async def test_a_torn_file_is_worth_another_try(tmp_path: Path) -> None:
    """Its worker was killed while it wrote: that is no reason to fail a run."""
    spool, files = Spool(tmp_path / "spool"), tmp_path / "partials"
    files.mkdir()
    items = [fold_item(ref(ALICE), committed(spool, ref(ALICE), chunks_of(values_of(0))).digest)]
    calls = Calls(IngestNode("worker-0", spool))
    with ThreadPoolExecutor(1) as executor:
        node = FileNode("worker-0", calls, files, executor)
        calls.torn = True
        with pytest.raises(UnavailableError, match="checksum"):
            async with node.partial(sum_key(), items):
                pass
        assert list(files.iterdir()) == []
        calls.torn = False
        async with node.partial(sum_key(), items) as found:
            expected = IngestNode("one", spool).partial(sum_key(), items)
            assert found.sum_block(0, SIZE).tobytes() == expected.sum_block(0, SIZE).tobytes()
