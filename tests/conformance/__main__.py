"""Play the contract's scenarios against a client in any language.

Prints a join token and the addresses, then waits for the client; with a command, starts it with the token in
``ATOLL_JOIN_TOKEN``. The client's exercise: add 1 to every weight, wait as many seconds as the setting ``seconds`` says
(0 if it is absent; a Stop ends the wait), and report a weight of at most what it declared. Exits with 1 if it failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence

from tests.conformance.play import play
from tests.conformance.scenarios import SCENARIOS, Scenario
from tests.conformance.server import ConformanceServer


def main(arguments: Sequence[str]) -> int:
    """Run the script; its exit status."""
    options = _parser().parse_args(arguments)
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = sorted(set(options.only) - set(known))
    if unknown:
        sys.stderr.write(f"no such scenario: {', '.join(unknown)}; there are {', '.join(known)}\n")
        return 2
    wanted = {SCENARIOS[0].name, *(options.only or known)}  # nothing comes before the enrolment
    chosen = [scenario for scenario in SCENARIOS if scenario.name in wanted]
    return asyncio.run(_run(chosen, options.command, wait_s=options.wait, as_json=options.json))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--only", action="append", default=[], metavar="SCENARIO", help="play this one (repeatable)")
    parser.add_argument("--wait", type=float, default=20.0, metavar="SECONDS", help="longest wait for the client")
    parser.add_argument("command", nargs="*", help="starts the client; put -- before it")
    return parser


async def _run(scenarios: Sequence[Scenario], command: Sequence[str], *, wait_s: float, as_json: bool) -> int:
    failures = 0
    async with ConformanceServer(wait_s) as server:
        token = server.token()
        facts = {"token": token, "main": server.address, "enrolment": f"127.0.0.1:{server.enrolment_port}"}
        _tell(facts, "\n".join(f"{name}: {value}" for name, value in facts.items()), as_json=as_json)
        async with _started(command, token):
            async for outcome in play(server, scenarios):
                failures += not outcome.passed
                verdict = "pass" if outcome.passed else "FAIL"
                text = f"{verdict}  {outcome.scenario}: {outcome.expected}"
                fields = dataclasses.asdict(outcome) | {"passed": outcome.passed}
                _tell(fields, text if outcome.passed else f"{text}\n      found: {outcome.problem}", as_json=as_json)
    return 1 if failures else 0


def _tell(fields: Mapping[str, object], text: str, *, as_json: bool) -> None:
    sys.stdout.write((json.dumps(fields) if as_json else text) + "\n")
    sys.stdout.flush()


@contextlib.asynccontextmanager
async def _started(command: Sequence[str], token: str) -> AsyncIterator[None]:
    if not command:
        yield
        return
    client = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "ATOLL_JOIN_TOKEN": token}, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            client.kill()
        await client.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
