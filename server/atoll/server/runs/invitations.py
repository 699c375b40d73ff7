"""Makes the invitations to a run's rounds; the part that all members share is serialised once per round."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field

from atoll.server.errors import ServerError
from atoll.server.jobs import JobSpec, fragments_of
from atoll.server.rounds import Member, RoundKey, RoundKind, RoundState, RunState, Weighting, planned_round
from atoll.server.runs.instructions import Invitation
from atoll.server.runs.return_spread import return_spread_s
from atoll.server.runs.run_privacy import RunPrivacy
from atoll.server.stores import BlobStore
from atoll.wire.chunks import range_to_proto
from atoll.wire.digest import INLINE_BYTES
from atoll.wire.fields import submessage
from atoll.wire.layout import Layout
from atoll.wire.messages import settings_to_proto
from atoll.wire.privacy_terms import terms_to_proto
from atoll.wire.seeds import task_seed
from atoll.wire.statistics_query import query_to_proto
from atoll.wire.v1 import participation_pb2, tensors_pb2

log = logging.getLogger(__name__)

ANY_WEIGHT = 2**40
READ_AGAIN_S = 1.0
"""Seconds until a model that could not be read is read again for invitations: large cohorts return together."""

_KINDS = {
    RoundKind.TRAIN: participation_pb2.Participate.KIND_TRAIN,
    RoundKind.EVALUATE: participation_pb2.Participate.KIND_EVALUATE,
}


@dataclass
class Invitations:
    """Makes the instructions of one run. An invitation carries a small model, read from ``blobs``.

    Attributes:
        layout_message: ``layout`` as a serialised message, from the run's row.
        privacy: gives the privacy terms and the cohort size in the invitation.
    """

    run: str
    spec: JobSpec
    layout: Layout
    layout_message: bytes
    blobs: BlobStore
    privacy: RunPrivacy
    _shared: tuple[RoundKey | None, bytes] = field(default=(None, b""), init=False)
    _kept_until: float = field(default=0.0, init=False)

    def for_member(
        self, state: RunState, live: RoundState, member: Member, *, remaining_s: float, traceparent: str
    ) -> Invitation:
        """The task of an open round, with this member's largest weight, seed and trace context."""
        seed = self.spec.job.seed  # None in a run that an earlier version submitted
        own = participation_pb2.Participate(
            remaining_s=max(0.0, remaining_s),
            max_weight=max_weight(state, member.declared_weight),
            traceparent=traceparent,
            seed=None if seed is None else task_seed(seed, planned_round(state.policy, live), member.participant),
        )
        return Invitation(self._shared_by_all(state, live), own.SerializeToString())

    def _shared_by_all(self, state: RunState, live: RoundState) -> bytes:
        """The part of the invitation that is shared by all members of the open round; cached while the round lasts.

        If the model could not be read, the part is cached for ``READ_AGAIN_S`` only.
        """
        key, found = self._shared
        if key == live.key and time.monotonic() < self._kept_until:
            return found
        model = tensors_pb2.TensorSet(name="model", blob=state.model)
        complete = self.layout.size_bytes > INLINE_BYTES or self._add_content(model)
        found = self._task(state, live).SerializeToString() + self._input(model)
        self._shared = live.key, found
        self._kept_until = math.inf if complete else time.monotonic() + READ_AGAIN_S
        return found

    def _task(self, state: RunState, live: RoundState) -> participation_pb2.Participate:
        spec, announced, terms = self.spec, self.announced_size(live), self.privacy.terms(live.version)
        statistics = None if spec.statistics is None else query_to_proto(spec.statistics.query)
        return participation_pb2.Participate(
            key=_key(self.run, live.key),
            run_name=spec.job.name,
            kind=_KINDS[live.kind] if statistics is None else participation_pb2.Participate.KIND_STATISTICS,
            rounds_total=state.policy.rounds,
            settings=settings_to_proto(spec.training),
            cohort_size=announced,
            encoding=tensors_pb2.Encoding.ValueType(spec.aggregation.wire_encoding),
            max_abs=state.policy.max_abs,
            evaluate=spec.evaluation.before_training and live.kind is RoundKind.TRAIN,
            return_spread_s=return_spread_s(announced),
            ranges=self._ranges(live),
            privacy=None if terms is None else terms_to_proto(terms),
            statistics=statistics,
            frozen=spec.aggregation.frozen,
        )

    def announced_size(self, live: RoundState) -> int:
        """The size of the cohort in the members' invitations."""
        return self.privacy.cohort_size(len(live.roster))

    def _ranges(self, live: RoundState) -> list[tensors_pb2.ElementRange]:
        """The element ranges that the update must cover; empty for all elements."""
        part = fragments_of(self.spec, self.layout).of_round(live.version)
        if live.kind is not RoundKind.TRAIN or part.size == self.layout.size:
            return []
        return [range_to_proto(part)]

    def _input(self, model: tensors_pb2.TensorSet) -> bytes:
        """The model to train, as a serialised field of ``Participate``."""
        layout = submessage(tensors_pb2.TensorSet.LAYOUT_FIELD_NUMBER, self.layout_message)
        return submessage(participation_pb2.Participate.INPUTS_FIELD_NUMBER, model.SerializeToString(), layout)

    def _add_content(self, model: tensors_pb2.TensorSet) -> bool:
        """Add the model's bytes; returns whether they could be read."""
        try:
            with self.blobs.open(model.blob) as blob:
                model.content = bytes(blob.read(0, blob.manifest.size_bytes))
                model.chunk_bytes = blob.manifest.chunk_bytes
        except ServerError as error:  # participants then download the model and get the error there
            log.warning("run %s: invitations do not carry the model: %s", self.run, error)
            return False
        return True

    def stop(self, key: RoundKey, reason: str, *, late_welcome: bool) -> participation_pb2.CheckInResponse:
        """The instruction to stop the work on a round."""
        return stop_message(self.run, key, reason, late_welcome=late_welcome)


def stop_message(
    run: str, key: RoundKey, reason: str, *, late_welcome: bool = False
) -> participation_pb2.CheckInResponse:
    """The instruction to stop the work on a round."""
    stop = participation_pb2.Stop(key=_key(run, key), reason=reason, late_report_welcome=late_welcome)
    return participation_pb2.CheckInResponse(stop=stop)


def max_weight(state: RunState, declared_weight: int) -> int:
    """The largest weight that a member may report: its declared weight if weights count examples, else any."""
    return declared_weight if state.policy.weighting is Weighting.EXAMPLES else ANY_WEIGHT


def _key(run: str, key: RoundKey) -> participation_pb2.RoundKey:
    return participation_pb2.RoundKey(run=run, round=key.round, attempt=key.attempt)
