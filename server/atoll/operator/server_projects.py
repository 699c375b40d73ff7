"""The projects of a server, by calls to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.server.control import ClosedProject, ProjectQuota, ProjectSummary, value_of, values_of
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from atoll.operator.calls import Calls
    from atoll.wire.v1.control_pb2_grpc import ControlServiceStub

UNLIMITED = ProjectQuota()


class ServerProjects:
    """Makes, lists, limits and closes projects."""

    _calls: Calls
    _control: ControlServiceStub

    @property
    def project(self) -> str:
        """The project of the calls; empty: all in which you have a role."""
        return self._calls.target.project

    def projects(self) -> tuple[ProjectSummary, ...]:
        """The projects in which you have a role, by name."""
        answer = self._calls.call(self._control.ListProjects, control_pb2.ListProjectsRequest())
        return values_of(ProjectSummary, answer.projects)

    def find_project(self, name: str) -> ProjectSummary:
        """One project, its quotas and its usage."""
        answer = self._calls.call(self._control.ListProjects, control_pb2.ListProjectsRequest(project=name))
        return values_of(ProjectSummary, answer.projects)[0]

    def make_project(self, name: str, quota: ProjectQuota = UNLIMITED) -> ProjectSummary:
        """Create a project. Needs the role of an administrator in all projects.

        Args:
            name: 1 to 31 characters a-z, 0-9 and -.
            quota: its quotas; None in a field: unlimited.
        """
        request = control_pb2.CreateProjectRequest(project=name, quota=_message(quota))
        return value_of(ProjectSummary, self._calls.call(self._control.CreateProject, request).project)

    def set_project_quota(self, name: str, quota: ProjectQuota) -> ProjectSummary:
        """Replace all quotas of a project; they apply to everything started from now on."""
        request = control_pb2.SetProjectQuotaRequest(project=name, quota=_message(quota))
        return value_of(ProjectSummary, self._calls.call(self._control.SetProjectQuota, request).project)

    def close_project(self, name: str) -> ClosedProject:
        """Close a project permanently; its runs must have ended. Nothing new can start in it, but it stays readable."""
        request = control_pb2.CloseProjectRequest(project=name)
        return value_of(ClosedProject, self._calls.call(self._control.CloseProject, request))


def _message(quota: ProjectQuota) -> control_pb2.ProjectQuota:
    return control_pb2.ProjectQuota(runs=quota.runs, participants=quota.participants, model_bytes=quota.model_bytes)
