"""What a member of a round is told, built once for all members."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from atoll.server.daemon.private import PrivateRounds
from atoll.server.daemon.sessions import return_spread_s
from atoll.server.errors import ServerError
from atoll.server.jobs import JobSpec, fragments_of
from atoll.server.rounds import RoundKey, RoundKind, RoundState, RunState, Weighting
from atoll.server.stores import BlobStore
from atoll.wire.chunks import range_to_proto
from atoll.wire.digest import INLINE_BYTES
from atoll.wire.layout import Layout
from atoll.wire.messages import layout_to_proto, settings_to_proto
from atoll.wire.privacy import terms_to_proto
from atoll.wire.v1 import participation_pb2, tensors_pb2

log = logging.getLogger(__name__)

ANY_WEIGHT = 2**40

_KINDS = {
    RoundKind.TRAIN: participation_pb2.Participate.KIND_TRAIN,
    RoundKind.EVALUATE: participation_pb2.Participate.KIND_EVALUATE,
}


@dataclass(frozen=True)
class Invitations:
    """Makes the instructions of one run. A small model comes along: it is read from ``blobs`` where it is asked for.

    Members of a ``private`` run are told what it promises.
    """

    run: str
    spec: JobSpec
    layout: Layout
    blobs: BlobStore
    private: PrivateRounds | None = None

    def participate(self, state: RunState, live: RoundState, remaining_s: float) -> bytes:
        """The task of an open round as a serialised instruction, but for what is each member's own."""
        spec, told = self.spec, self._told_size(live)
        task = participation_pb2.Participate(
            key=_key(self.run, live.key),
            run_name=spec.job.name,
            kind=_KINDS[live.kind],
            rounds_total=spec.job.rounds,
            inputs=[self._model(state.model)],
            settings=settings_to_proto(spec.training),
            remaining_s=max(0.0, remaining_s),
            cohort_size=told,
            encoding=tensors_pb2.Encoding.ValueType(spec.aggregation.wire_encoding),
            max_abs=state.policy.max_abs,
            evaluate=spec.evaluation.before_training and live.kind is RoundKind.TRAIN,
            return_spread_s=return_spread_s(told),
            ranges=self._ranges(live),
            privacy=None if self.private is None else terms_to_proto(self.private.at(live.version).terms),
        )
        return participation_pb2.CheckInResponse(participate=task).SerializeToString()

    def _told_size(self, live: RoundState) -> int:
        """The cohort's size; the planned one where the draw is secret, for how many it drew tells of who is in it."""
        return self.spec.cohort.size if self.private is not None else len(live.roster)

    def _ranges(self, live: RoundState) -> list[tensors_pb2.ElementRange]:
        """What the update is to have; empty for all of it."""
        fragments = fragments_of(self.spec, self.layout)
        if live.kind is not RoundKind.TRAIN or len(fragments) == 1:
            return []
        return [range_to_proto(fragments.of_round(live.version))]

    def _model(self, blob: str) -> tensors_pb2.TensorSet:
        found = tensors_pb2.TensorSet(name="model", layout=layout_to_proto(self.layout), blob=blob)
        if self.layout.size_bytes > INLINE_BYTES:
            return found
        try:
            with self.blobs.open(blob) as model:
                found.content = bytes(model.read(0, model.manifest.size_bytes))
                found.chunk_bytes = model.manifest.chunk_bytes
        except ServerError as error:  # it is told to those who then ask for it
            log.warning("run %s: the model does not come along with invitations: %s", self.run, error)
        return found

    def for_member(self, task: bytes, state: RunState, declared_weight: int, traceparent: str) -> bytes:
        """The serialised task with what this member may report at most, and the trace that its work belongs to.

        A message that follows another is merged into it (protobuf encoding, "Last One Wins"): so what all members share
        is serialised once, however large the layout.
        """
        own = participation_pb2.Participate(traceparent=traceparent, max_weight=max_weight(state, declared_weight))
        return task + participation_pb2.CheckInResponse(participate=own).SerializeToString()

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
