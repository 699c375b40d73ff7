import dataclasses
import hashlib

import pytest
from sqlalchemy import Connection, text, update

from atoll.server.stores import (
    Charge,
    RecordConflictError,
    RecordMissingError,
    Store,
    StoreDamagedError,
    charges,
    populations,
    schema,
)
from atoll.server.stores.hash_chain import canonical
from tests.server.stores.samples import NOW, RUN

CLINIC = "clinic"


def a_charge(round_number: int = 0, run_id: str = RUN, population: str | None = CLINIC) -> Charge:
    return Charge(run_id, round_number, 0, "gaussian", '{ "b": 0.1, "a": 1e-05 }', NOW + round_number, population)


@pytest.fixture
def clinic(with_run: Store) -> Store:
    with_run.writer.submit(populations.add, CLINIC, "add_remove", NOW).result()
    return with_run


async def test_each_charge_names_the_one_before(clinic: Store) -> None:
    kept = [await clinic.writer.run(charges.add, a_charge(number)) for number in range(3)]
    population = await clinic.reader.run(lambda connection: populations.get(connection, CLINIC))
    assert [charge.seq for charge in kept] == [0, 1, 2]
    assert [charge.previous for charge in kept] == [population.root, kept[0].digest, kept[1].digest]
    assert (population.charges, population.head) == (3, kept[2].digest)
    for charge in kept:
        assert charge.digest == hashlib.sha256(canonical(charge.entry).encode()).hexdigest()


async def test_the_bytes_under_a_digest_are_fixed(clinic: Store) -> None:
    """Exports of this version must be verifiable by every later one."""
    first = await clinic.writer.run(charges.add, a_charge())
    population = await clinic.reader.run(lambda connection: populations.get(connection, CLINIC))
    assert canonical(population.entry) == (
        '{"adjacency":"add_remove","created_at":1800000000.123456,"population":"clinic","unit":"participant"}'
    )
    assert canonical(first.entry) == (
        '{"attempt":0,"charged_at":1800000000.123456,"cost":{"a":1e-05,"b":0.1},"mechanism":"gaussian",'
        f'"population":"clinic","previous":"{population.root}","round":0,"run":"rabcdefghijkl","seq":0}}'
    )


async def test_what_is_read_back_has_the_same_digest(clinic: Store) -> None:
    kept = [await clinic.writer.run(charges.add, a_charge(number)) for number in range(3)]
    found = await clinic.reader.run(lambda connection: charges.of_population(connection, CLINIC, limit=10))
    assert found == tuple(kept)
    assert [charge.entry for charge in found] == [charge.entry for charge in kept]


async def test_populations_have_chains_of_their_own(clinic: Store) -> None:
    await clinic.writer.run(populations.add, "school", "add_remove", NOW)
    await clinic.writer.run(charges.add, a_charge())
    other = await clinic.writer.run(charges.add, a_charge(1, population="school"))
    assert other.seq == 0
    assert other.previous != (await clinic.reader.run(populations.get, CLINIC)).root


async def test_pages_and_runs(clinic: Store) -> None:
    for number in range(4):
        await clinic.writer.run(charges.add, a_charge(number, RUN if number % 2 else "rother"))

    def seqs(connection: Connection, start: int, limit: int, run_id: str | None = None) -> list[int | None]:
        found = charges.of_population(connection, CLINIC, run_id=run_id, start=start, limit=limit)
        return [charge.seq for charge in found]

    assert await clinic.reader.run(seqs, 1, 2) == [1, 2]
    assert await clinic.reader.run(seqs, 0, 9, RUN) == [1, 3]
    assert await clinic.reader.run(charges.population_of, RUN) == CLINIC
    assert await clinic.reader.run(charges.population_of, "rnone") is None


async def test_a_round_is_charged_once(clinic: Store) -> None:
    await clinic.writer.run(charges.add, a_charge())
    before = await clinic.reader.run(populations.get, CLINIC)
    with pytest.raises(RecordConflictError):
        await clinic.writer.run(charges.add, a_charge())
    assert await clinic.reader.run(populations.get, CLINIC) == before


async def test_there_must_be_a_population(clinic: Store) -> None:
    with pytest.raises(RecordMissingError, match="there is no population 'nobody'"):
        await clinic.writer.run(charges.add, a_charge(population="nobody"))


async def test_two_populations_cannot_share_a_name(clinic: Store) -> None:
    with pytest.raises(RecordConflictError):
        await clinic.writer.run(populations.add, CLINIC, "replace_one", NOW)


async def test_a_limit_changed_on_disk_is_found(clinic: Store) -> None:
    population = await clinic.reader.run(populations.get, CLINIC)
    limited = dataclasses.replace(population, epsilon=8.0, delta=1e-5, limited_by="admin", limited_at=NOW)
    await clinic.writer.run(populations.put, limited)
    assert await clinic.reader.run(populations.get, CLINIC) == limited
    await clinic.writer.run(lambda connection: connection.execute(update(schema.populations).values(epsilon=9.0)))
    with pytest.raises(StoreDamagedError, match="population clinic was changed on disk"):
        await clinic.reader.run(populations.get, CLINIC)


async def test_a_body_that_is_no_json_is_damage(clinic: Store) -> None:
    await clinic.writer.run(charges.add, a_charge())
    await clinic.writer.run(lambda connection: connection.execute(text("UPDATE charges SET body = '{'")))
    found = await clinic.reader.run(charges.get, RUN, 0)
    assert found is not None
    with pytest.raises(StoreDamagedError, match=f"the charge of round 1 of run {RUN} cannot be read"):
        _ = found.entry
