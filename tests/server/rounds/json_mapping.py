"""How a shell would write events and states: pydantic, with the events distinguished by their `kind`."""

from typing import Annotated

from pydantic import Field, TypeAdapter

from atoll.server.rounds import Event, RunState

EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])
STATES: TypeAdapter[RunState] = TypeAdapter(RunState)
