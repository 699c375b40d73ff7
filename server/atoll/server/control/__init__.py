"""What operators see of a server: the control API's answers as frozen values."""

from atoll.server.control.convert import (
    detail_of,
    new_tokens_of,
    participant_of,
    progress_of,
    round_of,
    run_of,
    server_info_of,
    token_of,
)
from atoll.server.control.values import (
    PHASES,
    Json,
    Member,
    NewTokens,
    Participant,
    Progress,
    Round,
    Run,
    RunDetail,
    ServerInfo,
    Token,
    as_json,
)

__all__ = [
    "PHASES",
    "Json",
    "Member",
    "NewTokens",
    "Participant",
    "Progress",
    "Round",
    "Run",
    "RunDetail",
    "ServerInfo",
    "Token",
    "as_json",
    "detail_of",
    "new_tokens_of",
    "participant_of",
    "progress_of",
    "round_of",
    "run_of",
    "server_info_of",
    "token_of",
]
