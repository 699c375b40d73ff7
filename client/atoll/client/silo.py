"""The parts of the client from which a silo is built; all ranks of a datacenter job use them.

An edge client calls ``run``. A silo's session is the same, but the work on an invitation is shared: rank 0 holds the
check-in stream (``Session`` with a ``MakeWork`` of its own), every rank downloads and uploads its own part of the model
(``TaskTransfers``, ``Upload`` of a ``Shard``), and rank 0 reports for all. The datacenter imports only this module and
the client's public modules (``tests/test_rooms.py``).

==================  ====================================================================================================
the session         ``Session``, ``Summary``, ``Work``, ``MakeWork``, ``Invitation``, ``round_key_message``,
                    ``disposition_of``, ``INCOMPLETE``, ``upload_reserve_s``
transfers           ``Endpoint``, ``TransferCalls``, ``TaskTransfers``, ``ChunkTarget``, ``ElementSource``, ``Shard``,
                    ``Upload``, ``cut_ranges``, ``Abandoned``, ``now_s``
clipping            ``clip_factor``, ``inner_product``, ``BLOCK_ELEMENTS``
the privacy ledger  ``Ledger``, ``Limit``, ``Release``, ``DP_SGD``, ``dp_sgd_release``, ``sample_ledger``,
                    ``ledger_path``
the state folder    ``locked``, ``load_identity``, ``IDENTITY_FILE``
the command line    ``access_options``, ``state_option``, ``token_option``, ``read_token``, ``read_policy``,
                    ``HumanLines``, ``JsonLines``, ``configure_logging``
==================  ====================================================================================================
"""

from atoll.client._clock import now_s
from atoll.client._connection.endpoint import Endpoint
from atoll.client._connection.identity import FILE_NAME as IDENTITY_FILE
from atoll.client._connection.identity import load as load_identity
from atoll.client._privacy.clipping import BLOCK_ELEMENTS, clip_factor, inner_product
from atoll.client._privacy.ledger import Ledger, Limit, Release
from atoll.client._privacy.sample_ledger import DP_SGD, dp_sgd_release, ledger_path, sample_ledger
from atoll.client._session.invitation import Invitation, round_key_message
from atoll.client._session.session import Session, Summary
from atoll.client._session.work import INCOMPLETE, MakeWork, Work, disposition_of, upload_reserve_s
from atoll.client._state.files import locked
from atoll.client._telemetry.logs import configure_logging
from atoll.client._transfer.calls import TransferCalls
from atoll.client._transfer.elements import ElementSource, Shard, cut_ranges
from atoll.client._transfer.retrier import Abandoned
from atoll.client._transfer.task_transfers import ChunkTarget, TaskTransfers
from atoll.client._transfer.upload import Upload
from atoll.client.cli.options import access_options, state_option, token_option
from atoll.client.cli.output import HumanLines, JsonLines
from atoll.client.cli.policy_file import read_policy
from atoll.client.participate import read_token

__all__ = [
    "BLOCK_ELEMENTS",
    "DP_SGD",
    "IDENTITY_FILE",
    "INCOMPLETE",
    "Abandoned",
    "ChunkTarget",
    "ElementSource",
    "Endpoint",
    "HumanLines",
    "Invitation",
    "JsonLines",
    "Ledger",
    "Limit",
    "MakeWork",
    "Release",
    "Session",
    "Shard",
    "Summary",
    "TaskTransfers",
    "TransferCalls",
    "Upload",
    "Work",
    "access_options",
    "clip_factor",
    "configure_logging",
    "cut_ranges",
    "disposition_of",
    "dp_sgd_release",
    "inner_product",
    "ledger_path",
    "load_identity",
    "locked",
    "now_s",
    "read_policy",
    "read_token",
    "round_key_message",
    "sample_ledger",
    "state_option",
    "token_option",
    "upload_reserve_s",
]
