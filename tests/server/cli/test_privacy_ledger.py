"""``atoll privacy ledger``, ``limit`` and ``verify`` against a real server, its ledger filled beforehand."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import update

from atoll.server.aggregation import warm
from atoll.server.cli.privacy import privacy
from atoll.server.cli.run import run
from atoll.server.privacy import accounting
from atoll.server.privacy.events import Event, Sampling
from atoll.server.stores import schema
from atoll.server.stores.database_place import DATABASE_FILE
from atoll.text.figures import bound, remainder
from tests.server.privacy.ledgers import CLINIC, DELTA, FIRST, SECOND, draw, fill
from tests.server.privacy.test_reconciling import cut, forget
from tests.server.rpc.world import World, job, update_values
from tests.server.runs.private.test_differential_privacy import capped

Ask = Callable[..., Awaitable[Result]]
SPENT = accounting.epsilon((Event(1.0, 0.1, 5, Sampling.POISSON),), DELTA / 2, "prv")
SHOWN = bound(SPENT)


async def write(world: World, work: Any, *arguments: Any, **named: Any) -> None:
    assert world.daemon._coordinator is not None
    await world.daemon._coordinator._services.writer.run(work, *arguments, **named)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    warm()
    async with World(tmp_path / "data") as opened:
        await write(opened, fill)
        yield opened


@pytest.fixture
def ask(world: World) -> Ask:
    """Runs ``atoll privacy`` with the operator's credential."""

    async def asked(*arguments: str) -> Result:
        whole = [*arguments, "--data", str(world.config.data)]
        return await asyncio.to_thread(CliRunner().invoke, privacy, whole)

    return asked


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(privacy, ["verify", *arguments])


async def test_what_has_been_spent_on_whom(world: World, ask: Ask) -> None:
    alice = await world.participant()
    await write(world, draw, FIRST, alice.name, drawn=3, counted=2)
    overview = (await ask("ledger")).stdout
    assert CLINIC in overview
    assert f"{SHOWN}" in overview
    population = (await ask("ledger", "--population", CLINIC)).stdout
    assert f"epsilon {SHOWN} at delta 1e-05 spent in 5 releases of 2 runs; there is no limit" in population
    assert "protects one participant, under add_remove adjacency" in population
    assert "rfirst digits" in population
    rounds = (await ask("ledger", "--run", SECOND, "--last", "1")).stdout
    assert "of its target of 8 at delta 1e-05, by prv, in 2 releases; population clinic" in rounds
    assert len([line for line in rounds.splitlines() if "poisson" in line]) == 1
    person = (await ask("ledger", "--participant", alice.name)).stdout
    assert f"population clinic: the participant's privacy loss is at most epsilon {SHOWN} at delta" in person
    (row,) = [line.split() for line in person.splitlines() if line.startswith(FIRST)]
    assert row[-3:-1] == ["3", "2"]


async def test_the_ledger_of_a_run_that_trained(world: World, ask: Ask) -> None:
    alice = await world.participant()
    async with alice.check_in() as stream:
        made = await world.submit(capped(2, most=2))
        for _ in range(2):
            task = await stream.next("participate")
            await alice.report(task.key, update_values(1))
        await world.until(made, "finished")
    expected = accounting.epsilon((Event(4.0, count=2),), DELTA, "prv")
    found = json.loads((await ask("ledger", "--run", made, "--json")).stdout)
    assert found["spent"]["releases"] == 2
    assert found["spent"]["epsilon"] == pytest.approx(expected)
    assert [charge["noise_multiplier"] for charge in found["charges"]] == pytest.approx([4.0, 4.0])
    assert found["charges"][-1]["epsilon_after"] == found["spent"]["epsilon"]
    person = json.loads((await ask("ledger", "--participant", alice.name, "--json")).stdout)
    assert [(item["run"], item["population"], item["drawn"], item["counted"]) for item in person["runs"]] == [
        (made, "people", 2, 2)
    ]


async def test_json(world: World, ask: Ask) -> None:
    alice = await world.participant()
    (found,) = json.loads((await ask("ledger", "--json")).stdout)
    assert (found["population"], found["epsilon"], found["left"], found["charges"]) == (CLINIC, SPENT, None, 5)
    assert json.loads((await ask("ledger", "--population", CLINIC, "--json")).stdout) == found
    first = json.loads((await ask("ledger", "--run", FIRST, "--json")).stdout)
    assert first["spent"] == found["runs"][0]
    assert [charge["version"] for charge in first["charges"]] == [0, 1, 2]
    person = json.loads((await ask("ledger", "--participant", alice.name, "--json")).stdout)
    assert (person["runs"], person["populations"], person["unprotected"]) == ([], [], [])


async def test_an_export_is_verified_offline(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    exported = await ask("ledger", "--export", str(file))
    assert exported.exit_code == 0, exported.output
    head = exported.stdout.strip()
    assert head.startswith(f"{CLINIC}=")
    sound = verify(str(file), "--head", head)
    assert sound.exit_code == 0, sound.output
    assert f"{SHOWN}" in sound.stdout
    assert json.loads(verify(str(file), "--head", head.partition("=")[2], "--json").stdout)["flaws"] == []
    lines = file.read_text().splitlines(keepends=True)
    for edited, answer in (
        ([*lines[:2], lines[2].replace("1.0", "9.0", 1), *lines[3:]], "ledger.jsonl:3: was changed"),
        ([*lines[:2], *lines[3:]], "ledger.jsonl:3: charge 1 of population clinic should come before it"),
        (lines[:-1], "the last charges are missing"),
        ([*lines[:-1], lines[-1][:40]], "ledger.jsonl:6: is cut off"),
    ):
        file.write_text("".join(edited))
        bad = verify(str(file), "--head", head)
        assert bad.exit_code == 1
        assert answer in bad.stdout
    file.write_text("".join(lines[:-1]))
    assert "differs from the export: 1 flaw\n" in verify(str(file), "--head", head).stderr
    assert verify(str(file)).exit_code == 0  # what was cut off cleanly, only the head tells


async def test_a_limit_is_set_and_taken_away(ask: Ask, tmp_path: Path) -> None:
    answer = (await ask("limit", CLINIC, "--epsilon", "50", "--delta", "1e-5")).stdout
    assert f"{remainder(50 - SPENT)} left of a limit of 50" in answer
    shown = (await ask("ledger", "--population", CLINIC)).stdout
    assert "left of a limit of 50 at delta 1e-05, set by admin on 20" in shown
    file = tmp_path / "ledger.jsonl"
    assert (await ask("ledger", "--export", str(file))).exit_code == 0
    (chain,) = json.loads(verify(str(file), "--json").stdout)["populations"]
    assert (chain["limit_epsilon"], chain["limit_delta"], chain["limited_by"]) == (50, 1e-5, "admin")
    assert "there is no limit, set by admin" in (await ask("limit", CLINIC, "--none")).stdout
    made = await ask("limit", "school", "--epsilon", "1", "--delta", "1e-6", "--create", "--json")
    school = (await ask("ledger", "--population", "school")).stdout
    assert "population school: nothing was charged yet; a limit of 1 at delta 1e-06, set by admin on 20" in school
    (row,) = [line.split() for line in (await ask("ledger")).stdout.splitlines() if line.startswith("school")]
    assert row[1:3] == ["nothing", "1e-06"]
    assert json.loads(made.stdout)["adjacency"] == "add_remove"
    unknown = await ask("limit", "misspelt", "--epsilon", "1", "--delta", "1e-6")
    assert unknown.exit_code == 1
    assert "there is no population 'misspelt'" in unknown.stderr


async def test_a_population_of_rows_is_one_of_its_own(ask: Ask, tmp_path: Path) -> None:
    some = ("--epsilon", "1", "--delta", "1e-6")
    made = json.loads((await ask("limit", "wards", *some, "--create", "--unit", "row", "--json")).stdout)
    assert (made["unit"], made["adjacency"]) == ("row", "add_remove_row")
    refused = await ask("limit", "wards", *some, "--create")
    assert "accounted for under add_remove_row adjacency" in refused.stderr
    assert "add --create" in (await ask("limit", "wards", *some, "--unit", "row")).stderr
    file = tmp_path / "ledger.jsonl"
    assert (await ask("ledger", "--export", str(file))).exit_code == 0
    chains = {chain["population"]: chain for chain in json.loads(verify(str(file), "--json").stdout)["populations"]}
    assert chains["wards"]["adjacency"] == "add_remove_row"


async def test_a_run_without_budget_waits_until_the_limit_is_raised(world: World, ask: Ask) -> None:
    """The reason is short in the list of runs, and complete for the run itself and for a resume that is too early."""
    alice = await world.participant()
    made = await world.submit(capped(1, most=1))
    await ask("limit", "people", "--epsilon", "1e-3", "--delta", "1e-5")
    async with alice.check_in() as stream:
        progress = await world.until(made, "paused")
        spent = "the privacy budget of population people has no room for the next round"
        assert progress.summary.reason.startswith(f"{spent}: epsilon 0 of a limit of 0.001 at delta 1e-05 is spent")
        (line,) = [line for line in (await runs(world, "list")).stdout.splitlines() if made in line]
        assert line.endswith(f"{spent}…")
        shown = (await runs(world, "show", made)).stdout
        assert f"\npaused: {progress.summary.reason}\n" in shown
        assert f"`atoll privacy limit people --epsilon E --delta D`, then `atoll run resume {made}`" in shown
        early = await runs(world, "resume", made)
        assert early.exit_code == 1
        assert f"round 1 of run {made} would make it" in early.stderr
        assert (await world.until(made, "paused")).summary.reason == progress.summary.reason
        await ask("limit", "people", "--epsilon", "50", "--delta", "1e-5")
        resumed = json.loads((await runs(world, "resume", made, "--json")).stdout)
        assert (resumed["status"], resumed["reason"]) == ("running", "")
        task = await stream.next("participate")
        await alice.report(task.key, update_values(1))
        await world.until(made, "finished")
    answer = (await ask("ledger", "--population", "people")).stdout
    assert " spent in 1 release of 1 run; " in answer


async def runs(world: World, *arguments: str) -> Result:
    """``atoll run`` with the operator's credential."""
    return await asyncio.to_thread(CliRunner().invoke, run, [*arguments, "--data", str(world.config.data)])


async def test_an_unknown_name_is_reported_with_the_place_of_names(world: World, ask: Ask) -> None:
    for asked, missing, listed_by in (
        (ask("ledger", "--participant", "nobody"), "there is no participant 'nobody'", "atoll participants list"),
        (ask("ledger", "--population", "nobody"), "there is no population 'nobody'", "atoll privacy ledger"),
        (ask("ledger", "--run", "nobody"), "there is no run 'nobody'", "atoll run list"),
        (runs(world, "show", "nobody"), "there is no run 'nobody'", "atoll run list"),
    ):
        found = await asked
        assert found.exit_code == 1
        assert found.stderr.endswith(f"{missing}\nWhat to do: `{listed_by}` lists them\n")


async def test_a_damaged_ledger_fails_the_command(world: World, ask: Ask) -> None:
    rows = schema.charges
    await write(world, lambda connection: connection.execute(rows.delete().where(rows.c.seq == 2)))
    for options in ([], ["--population", CLINIC], ["--run", FIRST]):
        found = await ask("ledger", *options)
        assert found.exit_code == 1
        assert "charge 2 is missing: charge 3 comes in its place" in found.stderr


async def test_what_can_be_read_of_a_damaged_ledger_is_shown(world: World, ask: Ask) -> None:
    rows = schema.charges
    await write(world, lambda connection: connection.execute(update(rows).where(rows.c.seq == 1).values(body="{")))
    population = await ask("ledger", "--population", CLINIC)
    assert "the charge of round 2 of run rfirst cannot be read" in population.stderr
    assert "readable: 5 charges of 2 runs, which give no bound on the privacy loss" in population.stdout
    (row,) = [line.split() for line in population.stdout.splitlines() if line.startswith("rsecond")]
    assert row[-6] == "2"
    run = await ask("ledger", "--run", FIRST)
    assert run.exit_code == 1
    assert "run rfirst (rfirst digits): 2 charges can be read, but there is no bound" in run.stdout
    assert run.stdout.count("cannot be read") == 1
    (found,) = json.loads((await ask("ledger", "--json")).stdout)
    assert found["flaw"]
    assert [one["releases"] for one in found["runs"]] == [2, 2]


async def test_a_damaged_ledger_is_exported_as_it_stands(world: World, ask: Ask, tmp_path: Path) -> None:
    """It is exported with the intact ones, so that the remaining lines can be compared with an older export."""
    await ask("limit", "school", "--epsilon", "1", "--delta", "1e-6", "--create")
    rows, file = schema.charges, tmp_path / "ledger.jsonl"
    clinic = update(schema.populations).where(schema.populations.c.name == CLINIC)
    sound = tmp_path / "sound.jsonl"
    assert (await ask("ledger", "--export", str(sound))).exit_code == 0
    cheaper = sound.read_text().splitlines()[2].replace('"noise_multiplier":1.0', '"noise_multiplier":1000.0')
    body = json.dumps(json.loads(cheaper)["cost"], sort_keys=True, separators=(",", ":"))
    await write(world, lambda connection: connection.execute(update(rows).where(rows.c.seq == 1).values(body=body)))
    await write(world, lambda connection: connection.execute(update(rows).where(rows.c.seq == 3).values(body="{")))
    await write(world, lambda connection: connection.execute(clinic.values(charges=9)))
    exported = await ask("ledger", "--export", str(file))
    assert exported.exit_code == 1
    assert exported.stdout.startswith("school=")
    assert f"{file}: 5 charges" in exported.stderr
    assert f"{file}:3: was changed: its digest does not fit" in exported.stderr
    assert f"{file}:5: is not a line of a ledger" in exported.stderr
    assert "the record of population clinic was changed on disk" in exported.stderr
    before, after = sound.read_text().splitlines(), file.read_text().splitlines()
    assert [number for number, (one, other) in enumerate(zip(before, after, strict=True), 1) if one != other] == [3, 5]
    assert verify(str(file)).exit_code == 1
    answer = json.loads((await ask("ledger", "--export", str(file), "--json")).stdout)
    assert (answer["damaged"], [one["population"] for one in answer["populations"]]) == ([CLINIC], ["school"])
    alone = await ask("ledger", "--population", "school", "--export", str(file))
    assert (alone.exit_code, alone.stdout.startswith("school=")) == (0, True)


async def test_a_population_whose_record_is_gone_is_exported(world: World, ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    with closing(sqlite3.connect(world.config.data / DATABASE_FILE)) as database, database:
        database.execute("DELETE FROM populations")  # as another program would: foreign keys are not checked
    exported = await ask("ledger", "--export", str(file))
    assert exported.exit_code == 1
    assert "it is not on record, though runs name it" in exported.stderr
    assert "population clinic has no first line before it" in exported.stderr
    assert len(file.read_text().splitlines()) == 5


async def test_a_population_that_is_gone_is_named(world: World, ask: Ask) -> None:
    """Its charges are removed too, so the rest is consistent, but runs still name the population."""
    alice = await world.participant()
    await write(world, draw, FIRST, alice.name, drawn=3, counted=2)
    await write(world, forget)
    answer = "the privacy ledger of population clinic is damaged: it is not on record, though runs name it"
    for options in ([], ["--run", FIRST], ["--participant", alice.name], ["--population", CLINIC]):
        found = await ask("ledger", *options)
        assert found.exit_code == 1
        assert answer in found.stderr
        assert "was charged nothing" not in found.stdout
    person = await ask("ledger", "--participant", alice.name, "--json")
    assert [item["flaw"] for item in json.loads(person.stdout)["populations"]] == [answer]
    assert "population 'school'" in (await ask("ledger", "--population", "school")).stderr


async def test_charges_that_are_gone_are_missed(world: World, ask: Ask) -> None:
    await write(world, cut, 0)
    answer = "run rfirst has released 3 models, 0 charges for them are here"
    for options in ([], ["--run", FIRST], ["--population", CLINIC]):
        found = await ask("ledger", *options)
        assert found.exit_code == 1
        assert answer in found.stderr
        assert "was charged nothing" not in found.stdout


async def test_a_run_that_was_charged_nothing(world: World, ask: Ask) -> None:
    open_run = await world.submit(job())
    answer = await ask("ledger", "--run", open_run)
    assert (answer.exit_code, "has no [privacy] section" in answer.stdout) == (0, True)
    private = await world.submit(capped(2, most=2))
    answer = await ask("ledger", "--run", private)
    assert (answer.exit_code, "of population people was charged nothing: it has released" in answer.stdout) == (0, True)


async def test_a_data_directory_answers_as_its_server_does(world: World, ask: Ask, tmp_path: Path) -> None:
    alice = await world.participant()
    await write(world, draw, FIRST, alice.name, drawn=3, counted=2)
    for options in (
        [],
        ["--population", CLINIC],
        ["--run", SECOND, "--last", "1"],
        ["--run", "latest"],
        ["--participant", alice.name],
    ):
        online, offline = await ask("ledger", *options, "--json"), await ask("ledger", "--offline", *options, "--json")
        assert (offline.exit_code, json.loads(offline.stdout)) == (0, json.loads(online.stdout)), options
    files = [tmp_path / "online.jsonl", tmp_path / "offline.jsonl"]
    heads = [(await ask("ledger", "--export", str(files[0]))).stdout]
    heads.append((await ask("ledger", "--offline", "--export", str(files[1]))).stdout)
    assert heads[0] == heads[1]
    assert files[0].read_bytes() == files[1].read_bytes()
    await write(world, cut, 0)
    damaged = await ask("ledger", "--offline")
    assert (damaged.exit_code, "has released 3 models, 0 charges for them are here" in damaged.stderr) == (1, True)
    unknown = await ask("ledger", "--offline", "--population", "school")
    assert (unknown.exit_code, "`atoll privacy ledger` lists them" in unknown.stderr) == (1, True)


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    for options, answer in (
        (["--data", str(tmp_path)], "is not a server's data directory: it has no database"),
        ([], "atoll-data is not a server's data directory"),
    ):
        found = CliRunner().invoke(privacy, ["ledger", "--offline", *options], env={"ATOLL_DATA": None})
        assert (found.exit_code, answer in found.stderr) == (2, True)
    (tmp_path / DATABASE_FILE).write_bytes(b"no database at all, and longer than a page's header is")
    found = CliRunner().invoke(privacy, ["ledger", "--offline", "--data", str(tmp_path)])
    assert (found.exit_code, "damaged" in found.stderr) == (1, True)


async def test_options_that_do_not_go_together(ask: Ask) -> None:
    for options in (
        ["ledger", "--run", FIRST, "--population", CLINIC],
        ["ledger", "--run", FIRST, "--export", "x"],
        ["limit", CLINIC],
        ["limit", CLINIC, "--epsilon", "1"],
        ["limit", CLINIC, "--epsilon", "1", "--delta", "1e-5", "--none"],
    ):
        assert (await ask(*options)).exit_code == 2


def test_what_is_no_export(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"\xff" * 100_000)
    found = verify(str(file))
    assert found.exit_code == 1
    assert f"{file}:1: is longer than 65536 characters" in found.stdout
    file.write_bytes(b"")
    empty = verify(str(file))
    assert (empty.exit_code, "has no line of a ledger" in empty.stderr) == (1, True)
    assert verify(str(file), "--head", "abc").exit_code == 2
    assert verify(str(file), "--head", "0" * 64).exit_code == 2
