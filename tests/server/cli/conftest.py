"""A small control server over real sockets, and a way to run commands against it."""
# ruff: noqa: N802 - the names of the handlers are the contract's

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import grpc
import numpy as np
import pytest
from click.testing import CliRunner, Result

from atoll.formats import safetensors
from atoll.server.identity import OperatorRole
from atoll.server.rpc.operations import actions_of
from atoll.wire.digest import BlobManifest
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_to_proto, manifest_from_proto, manifest_to_proto
from atoll.wire.project import PROJECT
from atoll.wire.status import ErrorDetail, Fault
from atoll.wire.v1 import control_pb2, control_pb2_grpc, enrolment_pb2, tensors_pb2, transfer_pb2, transfer_pb2_grpc

Context = grpc.ServicerContext
LAYOUT = Layout((TensorSpec("w", (300_000,), Dtype.FLOAT32), TensorSpec("b", (3,), Dtype.FLOAT32)))
BLOB = np.arange(LAYOUT.size, dtype="<f4").tobytes()
NOW = 1_700_000_000.0
ENDED = (control_pb2.RUN_STATUS_FINISHED, control_pb2.RUN_STATUS_FAILED, control_pb2.RUN_STATUS_CANCELLED)


def refuse(context: Context, status: grpc.StatusCode, detail: ErrorDetail) -> NoReturn:
    context.set_trailing_metadata((detail.trailer(),))
    context.abort(status, str(detail))


def summary(
    status: int = control_pb2.RUN_STATUS_RUNNING, released: int = 1, reason: str = ""
) -> control_pb2.RunSummary:
    return control_pb2.RunSummary(
        run="rabc",
        name="digits",
        status=control_pb2.RunStatus.ValueType(status),
        reason=reason,
        rounds_total=2,
        rounds_released=released,
        model_blob="ab" * 32,
        created_at=NOW,
        finished_at=NOW + 60 if status in ENDED else None,
    )


def a_round(number: int, phase: str = "released", **fields: Any) -> control_pb2.RoundSummary:
    member = control_pb2.MemberSummary(
        participant="pa",
        organisation="lab",
        status="timed_out",
        detail="too slow",
        end_s=3,
    )
    values: dict[str, Any] = {
        "round": number,
        "phase": phase,
        "kind": "train",
        "cohort": 2,
        "reported": 1,
        "opened_at": NOW,
        "closed_at": NOW + 0.5,
        "metrics": {"server/accuracy": 0.5 + number / 10},
        "members": [member],
    }
    return control_pb2.RoundSummary(**(values | fields))


class FakeControl(control_pb2_grpc.ControlServiceServicer):
    """Answers with values that a test sets, and records requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.uploaded = b""
        self.watches: list[list[control_pb2.WatchRunResponse | None]] = []
        self.rounds = [a_round(0)]
        self.job_toml = "[job]"
        self.status = control_pb2.RUN_STATUS_RUNNING
        self.extended_after: list[int] = []
        self.now = NOW
        self.warnings: list[str] = []
        self.populations: list[control_pb2.PopulationSummary] = []
        self.audit: list[control_pb2.AuditEntry] = []
        self.audit_flaw = ""
        self.audit_in_full = True  # the caller has a role in all projects
        self.role: control_pb2.OperatorRole.ValueType = control_pb2.OPERATOR_ROLE_ADMINISTRATOR
        self.actions = actions_of(OperatorRole.ADMINISTRATOR)
        unlimited = control_pb2.ProjectQuota()
        self.projects = [control_pb2.ProjectSummary(project="default", quota=unlimited, runs=1, participants=3)]
        self.without_projects = False
        self.own_projects: list[str] = []
        self.server_role: control_pb2.OperatorRole.ValueType = control_pb2.OPERATOR_ROLE_ADMINISTRATOR
        self.server_actions: tuple[str, ...] = ()
        self.named: list[str] = []
        """The projects that calls named."""
        self.log_lines: list[control_pb2.LogLine] = []
        """The newest first."""

    def UploadModel(self, request_iterator: Iterator[control_pb2.UploadModelRequest], context: Context) -> Any:
        del context
        manifest: BlobManifest | None = None
        for index, request in enumerate(request_iterator):
            manifest = manifest or manifest_from_proto(request.manifest)
            assert request.index == index
            manifest.verify_chunk(index, request.payload)
            self.uploaded += request.payload
        assert manifest is not None
        return control_pb2.UploadModelResponse(blob=manifest.name)

    def SubmitRun(self, request: control_pb2.SubmitRunRequest, context: Context) -> Any:
        self.asked.append(request)
        if b"unheard-of" in request.job_toml:
            refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                ErrorDetail("job.evaluator", Fault.CALLER, "no such evaluator", "install it"),
            )
        return control_pb2.SubmitRunResponse(run="rabc", warnings=self.warnings)

    def ListRuns(self, request: control_pb2.ListRunsRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        return control_pb2.ListRunsResponse(runs=[summary()])

    def GetRun(self, request: control_pb2.GetRunRequest, context: Context) -> Any:
        if request.run != "rabc":
            detail = ErrorDetail("run.missing", Fault.CALLER, f"there is no run '{request.run}'")
            refuse(context, grpc.StatusCode.NOT_FOUND, detail)
        self.asked.append(request)
        shown = [item for item in self.rounds if not request.HasField("round") or item.round == request.round]
        found = summary(self.status)
        found.extended_after.extend(self.extended_after)
        return control_pb2.GetRunResponse(summary=found, rounds=shown, job_toml=self.job_toml)

    def WatchRun(self, request: control_pb2.WatchRunRequest, context: Context) -> Any:
        del request
        for message in self.watches.pop(0):
            if message is None:
                context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
            yield message

    def PauseRun(self, request: control_pb2.PauseRunRequest, context: Context) -> Any:
        del request, context
        return control_pb2.PauseRunResponse(summary=summary())

    def ResumeRun(self, request: control_pb2.ResumeRunRequest, context: Context) -> Any:
        del request
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the run is not paused")

    def CancelRun(self, request: control_pb2.CancelRunRequest, context: Context) -> Any:
        del context
        return control_pb2.CancelRunResponse(summary=summary(control_pb2.RUN_STATUS_CANCELLED, reason=request.reason))

    def ExtendRun(self, request: control_pb2.ExtendRunRequest, context: Context) -> Any:
        self.asked.append(request)
        if request.run == "rbusy":
            detail = ErrorDetail("run.active", Fault.CALLER, "run rbusy is running", "wait for its end")
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, detail)
        self.status, self.extended_after = control_pb2.RUN_STATUS_RUNNING, [*self.extended_after, 1]
        return control_pb2.ExtendRunResponse(summary=summary())

    def DeleteRun(self, request: control_pb2.DeleteRunRequest, context: Context) -> Any:
        self.asked.append(request)
        if request.run == "rbusy":
            detail = ErrorDetail("run.active", Fault.CALLER, "run rbusy is running", "cancel it first")
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, detail)
        blobs = control_pb2.PrunedStorage(kind="models", run=request.run, count=2, stored_bytes=3_000_000)
        return control_pb2.DeleteRunResponse(removed=[blobs])

    def GetRunModel(self, request: control_pb2.GetRunModelRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        model = tensors_pb2.TensorSet(
            name="model", layout=layout_to_proto(LAYOUT), blob=BlobManifest.of_buffer(BLOB).name
        )
        return control_pb2.GetRunModelResponse(model=model, round=1)

    def CreateToken(self, request: control_pb2.CreateTokenRequest, context: Context) -> Any:
        if request.organisation == "forbidden":
            refuse(context, grpc.StatusCode.PERMISSION_DENIED, ErrorDetail("x", Fault.CALLER, "not yours", "ask"))
        self.asked.append(request)
        tokens = [f"atoll-join-1.{number}" for number in range(request.count)]
        return control_pb2.CreateTokenResponse(tokens=tokens, expires_at=NOW)

    def ListTokens(self, request: control_pb2.ListTokensRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        number = 2 if request.after else 1
        kind = enrolment_pb2.PARTICIPANT_KIND_EDGE
        token = control_pb2.TokenSummary(token_id=f"t{number}", organisation="lab", kind=kind)
        return control_pb2.ListTokensResponse(tokens=[token], next="" if request.after else "t1")

    def ListParticipants(self, request: control_pb2.ListParticipantsRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        if request.connected or not request.after:
            first = control_pb2.ParticipantSummary(participant="pa", connected=True, labels={"site": "north"})
            return control_pb2.ListParticipantsResponse(participants=[first], next="" if request.connected else "pa")
        second = control_pb2.ParticipantSummary(participant="pb", revoked_at=NOW)
        return control_pb2.ListParticipantsResponse(participants=[second])

    def RevokeParticipant(self, request: control_pb2.RevokeParticipantRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        participant = control_pb2.ParticipantSummary(participant=request.participant, organisation="lab")
        return control_pb2.RevokeParticipantResponse(participant=participant)

    def CreateOperator(self, request: control_pb2.CreateOperatorRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        return control_pb2.CreateOperatorResponse(certificate_pem=b"cert", ca_certificate_pem=b"ca", expires_at=NOW)

    def ListOperators(self, request: control_pb2.ListOperatorsRequest, context: Context) -> Any:
        del request, context
        alice = control_pb2.OperatorSummary(
            name="alice",
            role=control_pb2.OPERATOR_ROLE_PRIVACY_OFFICER,
            issued_at=NOW,
            expires_at=NOW + 60,
            certificates=1,
        )
        bob = control_pb2.OperatorSummary(name="bob", revoked_at=NOW, revoked_reason="left")
        old = control_pb2.OperatorSummary(name="carol", issued_at=NOW - 60, expires_at=NOW)
        return control_pb2.ListOperatorsResponse(operators=[alice, bob, old])

    def ListProjects(self, request: control_pb2.ListProjectsRequest, context: Context) -> Any:
        shown = [one for one in self.projects if request.project in ("", one.project)]
        if not shown:
            detail = ErrorDetail("project.missing", Fault.CALLER, f"there is no project '{request.project}'")
            refuse(context, grpc.StatusCode.NOT_FOUND, detail)
        return control_pb2.ListProjectsResponse(projects=shown)

    def CreateProject(self, request: control_pb2.CreateProjectRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        made = control_pb2.ProjectSummary(project=request.project, quota=request.quota, created_at=NOW)
        return control_pb2.CreateProjectResponse(project=made)

    def SetProjectQuota(self, request: control_pb2.SetProjectQuotaRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        changed = control_pb2.ProjectSummary(project=request.project, quota=request.quota)
        return control_pb2.SetProjectQuotaResponse(project=changed)

    def CloseProject(self, request: control_pb2.CloseProjectRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        closed = control_pb2.ProjectSummary(project=request.project, closed_at=NOW)
        return control_pb2.CloseProjectResponse(project=closed, voided_tokens=2)

    def SetOperatorRole(self, request: control_pb2.SetOperatorRoleRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        changed = control_pb2.OperatorSummary(name=request.name, role=request.role)
        return control_pb2.SetOperatorRoleResponse(operator=changed)

    def WhoAmI(self, request: control_pb2.WhoAmIRequest, context: Context) -> Any:
        del request
        project = str(dict(context.invocation_metadata()).get(PROJECT, ""))
        self.named.append(project)
        return control_pb2.WhoAmIResponse(
            name="dora",
            role=self.role,
            credential="certificate ab",
            actions=self.actions,
            project="" if self.without_projects else project,
            projects=[control_pb2.ProjectRoleSummary(project=one) for one in self.own_projects],
            server_role=self.server_role,
            server_actions=self.server_actions,
        )

    def VoidTokens(self, request: control_pb2.VoidTokensRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        return control_pb2.VoidTokensResponse(voided=2 if request.created_by else len(request.token_ids))

    def RevokeOperator(self, request: control_pb2.RevokeOperatorRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        return control_pb2.RevokeOperatorResponse(
            operator=control_pb2.OperatorSummary(name=request.name), voided_tokens=2
        )

    def GetServerInfo(self, request: control_pb2.GetServerInfoRequest, context: Context) -> Any:
        del request, context
        return control_pb2.GetServerInfoResponse(version="9.9", now=self.now, disk_free_bytes=10**12)

    def ListLogLines(self, request: control_pb2.ListLogLinesRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        page = max(1, request.limit)
        shown = [one for one in self.log_lines if one.level >= request.level and one.number < int(request.after or 99)]
        return control_pb2.ListLogLinesResponse(
            lines=shown[:page], next=str(shown[page - 1].number) if len(shown) > page else ""
        )

    def ListAudit(self, request: control_pb2.ListAuditRequest, context: Context) -> Any:
        if self.role in (control_pb2.OPERATOR_ROLE_VIEWER, control_pb2.OPERATOR_ROLE_OPERATOR):
            refuse(context, grpc.StatusCode.PERMISSION_DENIED, ErrorDetail("operator.role", Fault.CALLER, "not yours"))
        self.asked.append(request)
        answer = control_pb2.ListAuditResponse(entries=self.audit)
        unlimited = self.audit_in_full and PROJECT not in dict(context.invocation_metadata())
        if request.verify and unlimited:  # as the server does
            answer.chain.CopyFrom(control_pb2.AuditChain(entries=len(self.audit), head="ab", flaw=self.audit_flaw))
        return answer

    def ListPopulations(self, request: control_pb2.ListPopulationsRequest, context: Context) -> Any:
        del request, context
        return control_pb2.ListPopulationsResponse(populations=self.populations)

    def ListCharges(self, request: control_pb2.ListChargesRequest, context: Context) -> Any:
        if request.epsilon or not request.run:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "tests of the ledger have a real server")
        return control_pb2.ListChargesResponse()

    def GetParticipantPrivacy(self, request: control_pb2.GetParticipantPrivacyRequest, context: Context) -> Any:
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "tests of the ledger have a real server")

    def LimitPopulation(self, request: control_pb2.LimitPopulationRequest, context: Context) -> Any:
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "tests of the ledger have a real server")

    def PruneStorage(self, request: control_pb2.PruneStorageRequest, context: Context) -> Any:
        del context
        self.asked.append(request)
        events = control_pb2.PrunedStorage(kind="events", run="ra", count=7, stored_bytes=1000)
        blobs = control_pb2.PrunedStorage(kind="models", count=2, stored_bytes=3_000_000)
        return control_pb2.PruneStorageResponse(pruned=[events, blobs])


class FakeTransfer(transfer_pb2_grpc.TransferServiceServicer):
    """Serves one blob; breaks a download off after ``break_after`` chunks, once for each entry."""

    def __init__(self) -> None:
        self.break_after: list[int] = []
        self.damage = False

    def GetManifest(self, request: transfer_pb2.GetManifestRequest, context: Context) -> Any:
        del request, context
        return transfer_pb2.GetManifestResponse(manifest=manifest_to_proto(BlobManifest.of_buffer(BLOB)))

    def Download(self, request: transfer_pb2.DownloadRequest, context: Context) -> Any:
        manifest = BlobManifest.of_buffer(BLOB)
        limit = self.break_after.pop(0) if self.break_after else manifest.chunk_count
        for index in range(request.first_chunk, manifest.chunk_count):
            if index - request.first_chunk >= limit:
                context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
            start, stop = manifest.chunk_range(index)
            payload = BLOB[start:stop]
            yield transfer_pb2.DownloadResponse(index=index, payload=bytes(len(payload)) if self.damage else payload)

    def Upload(self, request_iterator: Any, context: Context) -> NoReturn:
        del request_iterator
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "operators do not upload updates")

    def GetUploadStatus(self, request: transfer_pb2.GetUploadStatusRequest, context: Context) -> NoReturn:
        self.Upload(request, context)

    def Report(self, request: transfer_pb2.ReportRequest, context: Context) -> NoReturn:
        self.Upload(request, context)


Asked = TypeVar("Asked")


class Fake:
    """The two services behind one address."""

    def __init__(
        self, address: str, control: FakeControl, transfer: FakeTransfer, stop: Callable[[], object] = lambda: None
    ) -> None:
        self.address = address
        self.control = control
        self.transfer = transfer
        self.stop = stop


def asked_for(fake: Fake, kind: type[Asked]) -> list[Asked]:
    """The requests of one kind that the control service received, in order."""
    return [one for one in fake.control.asked if isinstance(one, kind)]


def serve(add_port: Callable[[grpc.Server], int], control: FakeControl | None = None) -> Iterator[Fake]:
    control, transfer = control or FakeControl(), FakeTransfer()
    server = grpc.server(ThreadPoolExecutor(8))
    control_pb2_grpc.add_ControlServiceServicer_to_server(control, server)
    transfer_pb2_grpc.add_TransferServiceServicer_to_server(transfer, server)
    port = add_port(server)
    server.start()
    yield Fake(f"127.0.0.1:{port}", control, transfer, lambda: server.stop(None).wait())
    server.stop(None).wait()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own choice of a project: another test's is kept by address, and a port comes again."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ATOLL_PROJECT", raising=False)


@pytest.fixture
def fake() -> Iterator[Fake]:
    yield from serve(lambda server: server.add_insecure_port("127.0.0.1:0"))


Invoke = Callable[..., Result]


@pytest.fixture
def invoke(fake: Fake) -> Invoke:
    """Runs a command against the fake server."""

    def run(command: click.Command, *arguments: str, answer: str = "") -> Result:
        return CliRunner().invoke(command, [*arguments, "--insecure", "--server", fake.address], input=answer)

    return run


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "init.safetensors"
    safetensors.write(path, LAYOUT, [BLOB])
    return path


def json_of(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
