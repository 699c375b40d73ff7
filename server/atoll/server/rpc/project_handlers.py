"""The part of ControlService about projects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sqlalchemy import Connection

from atoll.server.access.project_book import Quota
from atoll.server.access.quotas import AT_WORK
from atoll.server.rpc.authentication import Context
from atoll.server.rpc.operator_handlers import OperatorHandlers
from atoll.server.rpc.scoping import current_scope
from atoll.server.stores import BlobFacts, Project, RecordMissingError, participants, projects, runs
from atoll.wire.v1 import control_pb2


class ProjectHandlers(OperatorHandlers):
    """Handlers about projects."""

    async def CreateProject(
        self, request: control_pb2.CreateProjectRequest, context: Context
    ) -> control_pb2.CreateProjectResponse:
        """Create a project."""
        operator = await self._authenticator.operator(context)
        made = await self._book.create(request.project, _quota(request.quota), by=operator)
        return control_pb2.CreateProjectResponse(project=await self._project(made))

    async def ListProjects(
        self, request: control_pb2.ListProjectsRequest, context: Context
    ) -> control_pb2.ListProjectsResponse:
        """List the projects in which the caller has a role, by name."""
        await self._authenticator.operator(context)
        rights = current_scope().rights
        seen = [one for one in (await self._book.all()).values() if rights.within(one.name) is not None]
        if request.project:
            seen = [one for one in seen if one.name == request.project]
            if not seen:
                raise RecordMissingError("project", request.project)
        facts = await self._services.call(self._services.blobs.stored)
        return control_pb2.ListProjectsResponse(projects=[await self._project(one, facts) for one in seen])

    async def SetProjectQuota(
        self, request: control_pb2.SetProjectQuotaRequest, context: Context
    ) -> control_pb2.SetProjectQuotaResponse:
        """Change a project's quotas."""
        operator = await self._authenticator.operator(context)
        changed = await self._book.set_quota(request.project, _quota(request.quota), by=operator)
        return control_pb2.SetProjectQuotaResponse(project=await self._project(changed))

    async def CloseProject(
        self, request: control_pb2.CloseProjectRequest, context: Context
    ) -> control_pb2.CloseProjectResponse:
        """Close a project whose runs have ended."""
        operator = await self._authenticator.operator(context)
        closed, voided = await self._book.close(request.project, by=operator)
        return control_pb2.CloseProjectResponse(project=await self._project(closed), voided_tokens=voided)

    async def _project(
        self, project: Project, facts: Mapping[str, BlobFacts] | None = None
    ) -> control_pb2.ProjectSummary:
        own = current_scope().rights.within(project.name)
        organisation = "" if own is None else own.organisation
        there = self._services.sessions.of(project.name)
        summary = control_pb2.ProjectSummary(
            project=project.name,
            created_at=project.created_at,
            created_by=project.created_by,
            closed_at=project.closed_at,
            connected=there.count_of(organisation) if organisation else len(there),
        )
        standing = partial(participants.count_standing, project=project.name, organisation=organisation)
        summary.participants = await self._services.reader.run(standing)
        if not organisation:
            summary.quota.CopyFrom(_limits(project))
            await self._count_runs(project.name, summary, facts)
        return summary

    async def _count_runs(
        self, project: str, summary: control_pb2.ProjectSummary, facts: Mapping[str, BlobFacts] | None
    ) -> None:
        """Add a project's number of active runs and stored bytes, which roles for one organisation do not see."""
        facts = await self._services.call(self._services.blobs.stored) if facts is None else facts

        def work(connection: Connection) -> tuple[int, frozenset[str]]:
            return runs.count_with_status(connection, project, AT_WORK), projects.blobs_of(connection, project)

        summary.runs, blobs = await self._services.reader.run(work)
        summary.model_bytes = sum(facts[name].stored_bytes for name in blobs if name in facts)


def _limits(project: Project) -> control_pb2.ProjectQuota:
    return control_pb2.ProjectQuota(
        runs=project.max_runs, participants=project.max_participants, model_bytes=project.max_model_bytes
    )


def _quota(asked: control_pb2.ProjectQuota) -> Quota:
    return Quota(
        asked.runs if asked.HasField("runs") else None,
        asked.participants if asked.HasField("participants") else None,
        asked.model_bytes if asked.HasField("model_bytes") else None,
    )
