import dataclasses

import pytest

from atoll.server.identity import ParticipantKind, TokenUsedError, mint, verify
from atoll.server.stores import RecordMissingError, Store, tokens
from tests.server.stores.samples import ALICE, BOB, NOW, OpenStore

MINTED = mint("acme", ParticipantKind.SILO, created_by="op", now=NOW)
TOKEN = MINTED.record
KEY, OTHER_KEY = "aa" * 32, "bb" * 32


@pytest.fixture
def with_token(store: Store) -> Store:
    store.writer.submit(tokens.add, TOKEN).result()
    return store


async def test_a_token_comes_back_as_it_was(with_token: Store) -> None:
    assert await with_token.reader.run(tokens.get, TOKEN.id) == TOKEN
    assert await with_token.reader.run(tokens.get, "tother") is None
    assert await with_token.reader.run(tokens.listed, project=None) == (TOKEN,)
    assert verify(await with_token.reader.run(tokens.get, TOKEN.id), MINTED.secret, now=NOW) == TOKEN


async def test_spending_is_recorded(with_token: Store) -> None:
    spent = await with_token.writer.run(tokens.spend, TOKEN.id, participant=ALICE, key=KEY, now=NOW + 5)
    assert spent == ALICE
    found = await with_token.reader.run(tokens.get, TOKEN.id)
    assert found == dataclasses.replace(TOKEN, used_at=NOW + 5, used_by=ALICE, used_key=KEY)


async def test_the_same_key_gets_the_same_participant_again(with_token: Store) -> None:
    await with_token.writer.run(tokens.spend, TOKEN.id, participant=ALICE, key=KEY, now=NOW)
    again = await with_token.writer.run(tokens.spend, TOKEN.id, participant=BOB, key=KEY, now=NOW + 9)
    assert again == ALICE


async def test_another_key_is_refused(with_token: Store) -> None:
    await with_token.writer.run(tokens.spend, TOKEN.id, participant=ALICE, key=KEY, now=NOW)
    with pytest.raises(TokenUsedError, match=TOKEN.id):
        await with_token.writer.run(tokens.spend, TOKEN.id, participant=BOB, key=OTHER_KEY, now=NOW)


async def test_an_unknown_token_is_refused(store: Store) -> None:
    with pytest.raises(RecordMissingError, match="tother"):
        await store.writer.run(tokens.spend, "tother", participant=ALICE, key=KEY, now=NOW)


def test_of_many_that_race_through_two_servers_one_wins(with_token: Store, open_store: OpenStore) -> None:
    other = open_store(primary=False)
    racing = [
        store.writer.submit(tokens.spend, TOKEN.id, participant=f"p{number}", key=f"{number:064x}", now=NOW)
        for number, store in enumerate([with_token, other] * 20)
    ]
    failures = [future.exception() for future in racing]
    assert [type(failure) for failure in failures if failure] == [TokenUsedError] * 39
    winner = failures.index(None)
    found = with_token.reader.submit(tokens.get, TOKEN.id).result()
    assert found is not None
    assert found.used_by == racing[winner].result() == f"p{winner}"


async def test_only_unspent_tokens_are_pruned(with_token: Store) -> None:
    spent = mint("acme", ParticipantKind.EDGE, created_by="op", now=NOW).record
    later = mint("acme", ParticipantKind.EDGE, created_by="op", now=NOW + 1e6).record
    for record in (spent, later):
        await with_token.writer.run(tokens.add, record)
    await with_token.writer.run(tokens.spend, spent.id, participant=ALICE, key=KEY, now=NOW)
    assert await with_token.writer.run(tokens.prune, expired_before=NOW + 5e5, most=10) == 1
    assert {token.id for token in await with_token.reader.run(tokens.listed, project=None)} == {spent.id, later.id}
