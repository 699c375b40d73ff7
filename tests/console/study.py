"""A federation of hospitals to look at: forty rounds of a run, a round in work, a private population."""

from __future__ import annotations

import math

from atoll.wire.v1 import control_pb2, enrolment_pb2
from tests.console.conftest import Watched
from tests.server.cli.conftest import NOW, summary

ROUNDS = 40
HOSPITALS = ("charite", "geneva", "karolinska", "leiden", "lyon", "oslo", "padua", "vienna")
JOB = """
[job]
name = "chest-x-ray"
rounds = 60

[cohort]
size = 8
quorum = 5

[model]
initial = "model.safetensors"
"""


def participant(number: int) -> str:
    return f"p{'abcdefgh'[number] * 12}"


def member(number: int, round_number: int) -> control_pb2.MemberSummary:
    """One hospital's part: Padua is often late, Oslo's data set has a hole."""
    status, detail = "reported", ""
    if number == 6 and round_number % 3:
        status = "timed_out"
    elif number == 5:
        status, detail = "failed", "ValueError: column 'age' has 3 missing values"
    end_s = 9.0 + number / 2 + round_number % 4
    return control_pb2.MemberSummary(
        participant=participant(number),
        organisation=HOSPITALS[number],
        status=status,
        detail=detail,
        weight=900 + 150 * number,
        accept_s=0.2,
        upload_s=end_s - 2,
        report_s=end_s if status == "reported" else None,
        end_s=end_s,
        fold_s=end_s + 0.4,
        claimed_s={"download": 1.1, "evaluate": 0.9, "fit": 4.0 + number / 3},
        payload_bytes=4_812_000,
    )


def a_round(number: int, phase: str = "released") -> control_pb2.RoundSummary:
    members = [member(one, number) for one in range(len(HOSPITALS))]
    released = phase == "released"
    begun = NOW + 20 * number
    done = 1 - math.exp(-number / 12)
    metrics = {
        "server/accuracy": 0.55 + 0.38 * done + 0.006 * math.sin(number * 2.1),
        "eval/accuracy": 0.53 + 0.38 * done + 0.01 * math.cos(number * 1.3),
        "server/loss": 0.72 - 0.5 * done + 0.01 * math.cos(number * 1.7),
        "train/loss": 0.7 - 0.54 * done,
    }
    return control_pb2.RoundSummary(
        round=number,
        version=number,
        kind="train",
        phase=phase,
        cohort=len(members),
        reported=sum(one.status == "reported" for one in members) if released else 3,
        wanted=8,
        quorum=5,
        total_weight=sum(one.weight for one in members if one.status == "reported"),
        created_at=begun,
        opened_at=begun,
        closed_at=begun + 12 + number % 5 if released else None,
        remaining_s=None if released else 42,
        metrics=metrics if released else {},
        members=members if released else [],
        phases_s={"draw": 0.01, "prepare": 0.2, "collect": 12.0, "aggregate": 0.6, "publish": 0.1} if released else {},
    )


def study() -> Watched:
    """The control server."""
    made = Study()
    made.job_toml = JOB
    made.rounds = [*(a_round(number) for number in range(ROUNDS)), a_round(ROUNDS, "open")]
    spending = control_pb2.RunSpending(
        run="rabc", name="chest-x-ray", epsilon=3.29, delta=1e-5, target=8, releases=40, first_at=NOW, last_at=NOW + 800
    )
    made.log_lines = [
        control_pb2.LogLine(
            number=2,
            logged_at=NOW + 700,
            level=control_pb2.LOG_LEVEL_WARNING,
            logger="atoll.server.telemetry.round_log",
            message="member failed: ValueError: column 'age' has 3 missing values",
            run="rabc",
            participant=participant(5),
        ),
        control_pb2.LogLine(
            number=1, logged_at=NOW, level=control_pb2.LOG_LEVEL_INFO, message="run rabc submitted by operator alice"
        ),
    ]
    made.populations = [
        control_pb2.PopulationSummary(
            population="hospitals",
            adjacency="add_remove",
            unit="participant",
            epsilon=3.29,
            delta=1e-5,
            accountant="prv",
            limit_epsilon=8,
            limit_delta=1e-5,
            left=4.71,
            limited_by="alice",
            limited_at=NOW,
            charges=40,
            head="5f" * 32,
            runs=[spending],
        )
    ]
    return made


class Study(Watched):
    """Answers for these hospitals; rounds are released as tests put them into ``rounds``."""

    def summarised(self) -> control_pb2.RunSummary:
        found = summary(self.status, sum(item.phase == "released" for item in self.rounds))
        found.MergeFrom(control_pb2.RunSummary(name="chest-x-ray", rounds_total=60))
        return found

    def ListRuns(self, request: control_pb2.ListRunsRequest, context: object) -> control_pb2.ListRunsResponse:  # noqa: N802
        del request, context
        older = control_pb2.RunSummary(
            run="rpqrstuvwxyz2",
            name="pilot",
            status=control_pb2.RUN_STATUS_FAILED,
            reason="quorum 5 can no longer be reached: 4 of 8 members failed",
            rounds_total=60,
            rounds_released=3,
            created_at=NOW - 9000,
            finished_at=NOW - 8000,
        )
        return control_pb2.ListRunsResponse(runs=[self.summarised(), older])

    def GetRun(self, request: control_pb2.GetRunRequest, context: object) -> control_pb2.GetRunResponse:  # noqa: N802
        del context
        shown = [item for item in self.rounds if item.round >= request.since]
        if request.HasField("round"):
            shown = [item for item in shown if item.round == request.round]
        return control_pb2.GetRunResponse(summary=self.summarised(), rounds=shown, job_toml=self.job_toml, connected=7)

    def ListParticipants(  # noqa: N802
        self, request: control_pb2.ListParticipantsRequest, context: object
    ) -> control_pb2.ListParticipantsResponse:
        del context
        found = [
            control_pb2.ParticipantSummary(
                participant=participant(number),
                organisation=name,
                kind=enrolment_pb2.PARTICIPANT_KIND_EDGE,
                connected=number != 6,
                examples=900 + 150 * number,
                times_selected=41,
                times_reported=0 if number == 5 else 14 if number == 6 else 40,
                enrolled_at=NOW - 5000,
                last_seen_at=NOW + 800,
                labels={"site": f"ward-{number}"},
            )
            for number, name in enumerate(HOSPITALS)
            if request.organisation in ("", name)
        ]
        return control_pb2.ListParticipantsResponse(participants=found)

    def GetServerInfo(  # noqa: N802
        self, request: control_pb2.GetServerInfoRequest, context: object
    ) -> control_pb2.GetServerInfoResponse:
        del request, context
        return control_pb2.GetServerInfoResponse(
            version="0.1.0", now=NOW, started_at=NOW - 9000, connected=7, disk_free_bytes=10**12
        )

    def GetParticipantPrivacy(  # noqa: N802
        self, request: control_pb2.GetParticipantPrivacyRequest, context: object
    ) -> control_pb2.GetParticipantPrivacyResponse:
        del context
        number = "abcdefgh".index(request.participant[1])
        part = control_pb2.ParticipantRun(
            run="rabc", name="chest-x-ray", population="hospitals", drawn=41, counted=40, releases=40
        )
        return control_pb2.GetParticipantPrivacyResponse(
            participant=request.participant,
            organisation=HOSPITALS[number],
            runs=[part],
            populations=self.populations,
            epsilon=3.29,
            delta=1e-5,
        )

    def ListCharges(self, request: control_pb2.ListChargesRequest, context: object) -> control_pb2.ListChargesResponse:  # noqa: N802
        del request, context
        found = [
            control_pb2.ChargeSummary(
                population="hospitals",
                seq=number,
                run="rabc",
                round=number,
                version=number,
                mechanism="gaussian",
                clip=0.5,
                noise_multiplier=1.1,
                sample_rate=0.4,
                sampling="poisson",
                charged_at=NOW + 20 * number,
                epsilon_after=0.3 + 0.0748 * number,
            )
            for number in range(ROUNDS)
        ]
        return control_pb2.ListChargesResponse(charges=found, population="hospitals")
