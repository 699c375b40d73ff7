"""Invitations to a run's rounds: what all members of a round share is serialised once."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from atoll.server.daemon.instructions import Invitation
from atoll.server.daemon.private import PrivateRounds
from atoll.server.daemon.return_spread import return_spread_s
from atoll.server.errors import ServerError
from atoll.server.jobs import JobSpec, fragments_of
from atoll.server.rounds import Member, RoundKey, RoundKind, RoundState, RunState, Weighting
from atoll.server.stores import BlobStore
from atoll.wire.chunks import range_to_proto
from atoll.wire.digest import INLINE_BYTES
from atoll.wire.fields import submessage
from atoll.wire.layout import Layout
from atoll.wire.messages import settings_to_proto
from atoll.wire.privacy import terms_to_proto
from atoll.wire.v1 import participation_pb2, tensors_pb2

log = logging.getLogger(__name__)

ANY_WEIGHT = 2**40

_KINDS = {
    RoundKind.TRAIN: participation_pb2.Participate.KIND_TRAIN,
    RoundKind.EVALUATE: participation_pb2.Participate.KIND_EVALUATE,
}


@dataclass
class Invitations:
    """Makes the instructions of one run. A small model comes along: it is read from ``blobs`` where it is asked for.

    Members of a ``private`` run are told what it promises.

    Attributes:
        layout_message: ``layout`` as its serialised message, which the run's row has.
    """

    run: str
    spec: JobSpec
    layout: Layout
    layout_message: bytes
    blobs: BlobStore
    private: PrivateRounds | None = None
    _shared: tuple[RoundKey | None, bytes] = field(default=(None, b""), init=False)

    def for_member(
        self, state: RunState, live: RoundState, member: Member, *, remaining_s: float, traceparent: str
    ) -> Invitation:
        """The task of an open round: with what this member may report at most, and the trace of its work."""
        own = participation_pb2.Participate(
            remaining_s=max(0.0, remaining_s),
            max_weight=max_weight(state, member.declared_weight),
            traceparent=traceparent,
        )
        return Invitation(self._shared_by_all(state, live), own.SerializeToString())

    def _shared_by_all(self, state: RunState, live: RoundState) -> bytes:
        """What all members of the open round are told, kept for those who come back to it."""
        key, found = self._shared
        if key != live.key:
            found = self._task(state, live).SerializeToString() + self._model(state.model)
            self._shared = live.key, found
        return found

    def _task(self, state: RunState, live: RoundState) -> participation_pb2.Participate:
        spec, told = self.spec, self.told_size(live)
        return participation_pb2.Participate(
            key=_key(self.run, live.key),
            run_name=spec.job.name,
            kind=_KINDS[live.kind],
            rounds_total=spec.job.rounds,
            settings=settings_to_proto(spec.training),
            cohort_size=told,
            encoding=tensors_pb2.Encoding.ValueType(spec.aggregation.wire_encoding),
            max_abs=state.policy.max_abs,
            evaluate=spec.evaluation.before_training and live.kind is RoundKind.TRAIN,
            return_spread_s=return_spread_s(told),
            ranges=self._ranges(live),
            privacy=None if self.private is None else terms_to_proto(self.private.at(live.version).terms),
        )

    def told_size(self, live: RoundState) -> int:
        """The cohort's size; in a private run the planned one, since the number drawn tells who is in it."""
        return self.spec.cohort.size if self.private is not None else len(live.roster)

    def _ranges(self, live: RoundState) -> list[tensors_pb2.ElementRange]:
        """What the update is to have; empty for all of it."""
        fragments = fragments_of(self.spec, self.layout)
        if live.kind is not RoundKind.TRAIN or len(fragments) == 1:
            return []
        return [range_to_proto(fragments.of_round(live.version))]

    def _model(self, blob: str) -> bytes:
        """The input that is trained, as the serialised field of ``Participate``."""
        found = tensors_pb2.TensorSet(name="model", blob=blob)
        if self.layout.size_bytes <= INLINE_BYTES:
            self._add_content(found)
        layout = submessage(tensors_pb2.TensorSet.LAYOUT_FIELD_NUMBER, self.layout_message)
        return submessage(participation_pb2.Participate.INPUTS_FIELD_NUMBER, found.SerializeToString(), layout)

    def _add_content(self, found: tensors_pb2.TensorSet) -> None:
        try:
            with self.blobs.open(found.blob) as model:
                found.content = bytes(model.read(0, model.manifest.size_bytes))
                found.chunk_bytes = model.manifest.chunk_bytes
        except ServerError as error:  # it is told to those who then ask for it
            log.warning("run %s: the model does not come along with invitations: %s", self.run, error)

    def stop(self, key: RoundKey, reason: str, *, late_welcome: bool) -> participation_pb2.CheckInResponse:
        """The round no longer wants this participant's work."""
        return stop_message(self.run, key, reason, late_welcome=late_welcome)


def stop_message(
    run: str, key: RoundKey, reason: str, *, late_welcome: bool = False
) -> participation_pb2.CheckInResponse:
    """The instruction to end the work on a round."""
    stop = participation_pb2.Stop(key=_key(run, key), reason=reason, late_report_welcome=late_welcome)
    return participation_pb2.CheckInResponse(stop=stop)


def max_weight(state: RunState, declared_weight: int) -> int:
    """The largest weight that a member may report: what it declared, where weights count; else any."""
    return declared_weight if state.policy.weighting is Weighting.EXAMPLES else ANY_WEIGHT


def _key(run: str, key: RoundKey) -> participation_pb2.RoundKey:
    return participation_pb2.RoundKey(run=run, round=key.round, attempt=key.attempt)
