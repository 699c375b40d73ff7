"""The operator's side of the system tests: tokens, runs, models, through the control service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from atoll.server.control import Following
from atoll.wire.digest import BlobManifest
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.loopback import INSECURE_OPERATOR
from atoll.wire.messages import layout_from_proto, layout_to_proto, manifest_to_proto
from atoll.wire.v1 import control_pb2, control_pb2_grpc, enrolment_pb2, transfer_pb2, transfer_pb2_grpc
from atoll.wire.views import tensor_views
from tests.patience import WAIT_S

Arrays = Mapping[str, npt.NDArray[Any]]
Section = Mapping[str, object]
Sight = control_pb2.WatchRunResponse
RUNNING = control_pb2.RUN_STATUS_RUNNING
PAUSED = control_pb2.RUN_STATUS_PAUSED
FINISHED = control_pb2.RUN_STATUS_FINISHED
FAILED = control_pb2.RUN_STATUS_FAILED
CANCELLED = control_pb2.RUN_STATUS_CANCELLED


def is_over(seen: Sight) -> bool:
    """Whether the run has ended."""
    return seen.summary.status in (FINISHED, FAILED, CANCELLED)


def layout_of(arrays: Arrays) -> Layout:
    """The layout of arrays, in their order."""
    return Layout(tuple(TensorSpec(name, array.shape, Dtype(array.dtype.name)) for name, array in arrays.items()))


def job_toml(**sections: Section) -> str:
    """A job file; the evaluation is off unless the sections say otherwise."""
    whole: dict[str, Section] = {
        "model": {"initial": "initial.safetensors"},
        "evaluation": {"before_training": False, "final": False},
        **sections,
    }
    parts = []
    for name, keys in whole.items():
        # TOML and JSON write numbers, texts and booleans alike.
        parts += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""]
    return "\n".join(parts)


class Operator:
    """Calls of one operator to one server; every call has a time limit."""

    def __init__(self, channel: grpc.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self.channel = channel
        self._metadata = metadata
        self.stub = control_pb2_grpc.ControlServiceStub(channel)
        self._transfer = transfer_pb2_grpc.TransferServiceStub(channel)

    @classmethod
    def of(cls, credential: Path) -> Operator:
        """The operator of a credential file."""
        found = json.loads(credential.read_text())
        tls = grpc.ssl_channel_credentials(
            found["ca_certificate"].encode(), found["key"].encode(), found["certificate"].encode()
        )
        return cls(grpc.secure_channel(found["address"], tls))

    @classmethod
    def insecure(cls, address: str) -> Operator:
        """An operator without TLS, which needs no credential."""
        return cls(grpc.insecure_channel(address), ((INSECURE_OPERATOR, "1"),))

    def close(self) -> None:
        self.channel.close()

    def tokens(self, count: int, *, lifetime_s: float = 600.0) -> list[str]:
        """Fresh join tokens."""
        request = control_pb2.CreateTokenRequest(
            organisation="acme", kind=enrolment_pb2.PARTICIPANT_KIND_EDGE, lifetime_s=lifetime_s, count=count
        )
        return list(self.stub.CreateToken(request, timeout=WAIT_S, metadata=self._metadata).tokens)

    def submit(self, toml: str, model: Arrays) -> str:
        """Send the initial model and the job; the run's id."""
        buffer = b"".join(np.ascontiguousarray(array).tobytes() for array in model.values())
        manifest = BlobManifest.of_buffer(buffer)
        blob = self.stub.UploadModel(_pieces(buffer, manifest), timeout=WAIT_S, metadata=self._metadata).blob
        request = control_pb2.SubmitRunRequest(
            job_toml=toml.encode(), file_name="job.toml", layout=layout_to_proto(layout_of(model)), initial_blob=blob
        )
        return self.stub.SubmitRun(request, timeout=WAIT_S, metadata=self._metadata).run

    def until(self, run: str, reached: Callable[[Sight], bool], what: str, timeout_s: float = WAIT_S) -> Sight:
        """Watch a run until a condition holds. Concurrent changes are seen as one, so the condition must be lasting.

        Raises:
            AssertionError: if the run or the time ends first; shows the state of the run.
        """
        seen: Sight | None = None
        call = self.stub.WatchRun(control_pb2.WatchRunRequest(run=run), timeout=timeout_s, metadata=self._metadata)
        try:
            following = Following()
            for message in call:
                seen = following.complete(message)
                if seen is not None and reached(seen):
                    return seen
        except grpc.RpcError as error:
            raise AssertionError(f"run {run}: not {what} ({error}); last seen: {seen}") from error
        finally:
            call.cancel()
        raise AssertionError(f"run {run} ended and is not {what}; last seen: {seen}")

    def ended(self, run: str, timeout_s: float = WAIT_S) -> control_pb2.RunSummary:
        """Wait until a run has ended; return its summary."""
        return self.until(run, is_over, "over", timeout_s).summary

    def connected(self, run: str, count: int) -> None:
        """Wait until at least this many participants are connected; needs a run to watch."""
        self.until(run, lambda seen: seen.connected >= count, f"seen by {count} participants")

    def finished(self, run: str, timeout_s: float = WAIT_S) -> None:
        """Wait for the end of a run that must succeed."""
        summary = self.ended(run, timeout_s)
        assert summary.status == FINISHED, summary

    def show(self, run: str) -> control_pb2.GetRunResponse:
        """A run with its rounds and their members."""
        request = control_pb2.GetRunRequest(run=run, members=True)
        return self.stub.GetRun(request, timeout=WAIT_S, metadata=self._metadata)

    def rounds(self, run: str) -> list[control_pb2.RoundSummary]:
        """Every attempt of every round, in order."""
        return list(self.show(run).rounds)

    def participants(self) -> dict[str, control_pb2.ParticipantSummary]:
        """Enrolled participants by id."""
        found = self.stub.ListParticipants(
            control_pb2.ListParticipantsRequest(), timeout=WAIT_S, metadata=self._metadata
        )
        return {row.participant: row for row in found.participants}

    def revoke(self, participant: str, reason: str) -> None:
        """Revoke a participant."""
        request = control_pb2.RevokeParticipantRequest(participant=participant, reason=reason)
        self.stub.RevokeParticipant(request, timeout=WAIT_S, metadata=self._metadata)

    def pause(self, run: str) -> None:
        self.stub.PauseRun(control_pb2.PauseRunRequest(run=run), timeout=WAIT_S, metadata=self._metadata)

    def resume(self, run: str) -> None:
        self.stub.ResumeRun(control_pb2.ResumeRunRequest(run=run), timeout=WAIT_S, metadata=self._metadata)

    def cancel(self, run: str, reason: str) -> None:
        request = control_pb2.CancelRunRequest(run=run, reason=reason)
        self.stub.CancelRun(request, timeout=WAIT_S, metadata=self._metadata)

    def model(self, run: str, version: int | None = None) -> bytes:
        """The bytes of a released model, the newest unless told otherwise; every chunk is verified."""
        return self._model(run, version)[1]

    def arrays(self, run: str, version: int | None = None) -> dict[str, npt.NDArray[Any]]:
        """A released model by tensor name."""
        layout, buffer = self._model(run, version)
        return dict(tensor_views(layout, memoryview(buffer)))

    def _model(self, run: str, version: int | None) -> tuple[Layout, bytes]:
        request = control_pb2.GetRunModelRequest(run=run, round=version)
        found = self.stub.GetRunModel(request, timeout=WAIT_S, metadata=self._metadata).model
        wanted = transfer_pb2.DownloadRequest(blob=found.blob)
        chunks = [chunk.payload for chunk in self._transfer.Download(wanted, timeout=WAIT_S, metadata=self._metadata)]
        buffer = b"".join(chunks)
        assert BlobManifest.of_buffer(buffer).name == found.blob
        return layout_from_proto(found.layout), buffer


def seconds_since(start: float) -> float:
    """Return the seconds since then on the monotonic clock."""
    return time.monotonic() - start


def _pieces(buffer: bytes, manifest: BlobManifest) -> Iterator[control_pb2.UploadModelRequest]:
    for index in range(manifest.chunk_count):
        start, stop = manifest.chunk_range(index)
        first = manifest_to_proto(manifest) if index == 0 else None
        yield control_pb2.UploadModelRequest(manifest=first, index=index, payload=buffer[start:stop])
