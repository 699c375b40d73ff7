"""Turns a job file and an initial model into a durable run; everything is checked before anything is stored."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from atoll.server.access.quotas import check_model_bytes, check_runs
from atoll.server.aggregation import STATE_BYTES
from atoll.server.errors import InvalidRequestError
from atoll.server.identity import DEFAULT_PROJECT, new_run_id
from atoll.server.jobs import (
    JobSpec,
    check_frozen,
    check_statistics_layout,
    fragments_of,
    optimiser_of,
    parse_job,
    to_run_policy,
    trained_first,
)
from atoll.server.privacy.tensor_statistics import check_no_statistics
from atoll.server.rounds import RunStatus
from atoll.server.rounds.judging import SERVER_METRIC
from atoll.server.runs.initial_model import check_finite, in_order
from atoll.server.runs.private.promise import promise_of
from atoll.server.runs.required import check_required
from atoll.server.runs.run_privacy import Promise
from atoll.server.runs.services import Services
from atoll.server.stores import BlobMissingError, models, projects, runs
from atoll.wire.encoding import payload_bytes
from atoll.wire.layout import Dtype, Layout
from atoll.wire.messages import layout_to_proto
from atoll.wire.seeds import SEED_BITS

REORDERED_LEASE_S = 600.0
"""Seconds that a reordered model is kept before a run refers to it; longer than the rest of a submission takes."""


@dataclass(frozen=True)
class Submitted:
    """A run that has begun, with warnings about what makes a good result unlikely."""

    run: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A run that has not ended, and the maximum bytes of models that it keeps."""

    run: str
    model_bytes: int


@dataclass(frozen=True)
class Submission:
    """A run that may begin, with the privacy that its job promises, and warnings."""

    run: runs.Run
    spec: JobSpec
    promise: Promise
    layout: Layout
    warnings: tuple[str, ...] = ()

    async def store(self, services: Services) -> None:
        """Make the run durable.

        Raises:
            BlobMissingError: if its first model was removed meanwhile.
        """
        await services.writer.run(self._put, services)

    def _put(self, connection: Connection, services: Services) -> None:
        run = self.run
        # In the transaction that refers to the blob: it was not removed before, and cannot be from now on.
        if not services.blobs.exists(run.initial_model):
            raise BlobMissingError(run.initial_model)
        check_runs(connection, run.project)
        runs.add(connection, run)
        models.add(connection, models.Model(run.id, 0, None, run.initial_model, self.layout.size_bytes, run.created_at))
        self.promise.store(connection, run.id, run.created_at)


async def examined(
    services: Services,
    *,
    job_toml: bytes,
    file_name: str,
    layout: Layout,
    initial_blob: str,
    operator: str,
    project: str = DEFAULT_PROJECT,
    at_work: Collection[Planned] = (),
) -> Submission:
    """Check that this server can run the job with this model, within the quotas of the project.

    ``at_work`` are the project's runs that have not ended.

    Raises:
        ConflictError: if the project is closed.
        LimitExceededError: if the run would exceed a quota of the project.
        JobFileError: lists every problem of the job.
        InvalidRequestError: if the model, the evaluator or a required participant is missing or does not fit, or noise
            would ruin the model.
        BudgetSpentError: if its rounds do not fit under the limit of its population.
        StoreDamagedError: if its population's ledger is known to be damaged.
    """
    spec = parse_job(job_toml, file_name or "job.toml")
    check_frozen(spec, layout)
    check_no_statistics(spec, layout)
    elements = fragments_of(spec, layout).largest
    check_averaging(spec, layout)
    check_statistics_layout(spec, layout)
    await services.reader.run(check_runs, project)
    await _check_owned(services, project, initial_blob)
    await _check_model(services, layout, initial_blob)
    initial_blob, layout = await _trained_first(services, spec, layout, initial_blob)
    check_evaluator(services, spec)
    await services.reader.run(check_required, spec, project)
    promise = await services.call(promise_of, spec, elements, project)
    await _check_room(services, layout, spec, elements, promise.kept_bytes(elements))
    await _check_quota(services, project, planned_bytes(services, spec, layout, promise.kept_bytes(elements)), at_work)
    await services.reader.run(promise.check_plan)
    run = runs.Run(
        id=new_run_id(),
        name=spec.job.name,
        job_toml=job_toml.decode(),
        layout=layout_to_proto(layout).SerializeToString(deterministic=True),
        initial_model=initial_blob,
        current_model=initial_blob,
        rounds_total=spec.job.rounds,
        status=RunStatus.SUBMITTED.value,
        submitted_by=operator,
        created_at=services.clock(),
        keep_models=spec.retention.models,
        seed=secrets.randbits(SEED_BITS) if spec.job.seed is None else spec.job.seed,
        project=project,
    )
    warnings = await services.reader.run(promise.warnings, elements, project)
    return Submission(run, spec, promise, layout, warnings)


def upload_owner(project: str) -> str:
    """Owner of the leases of models that were uploaded to a project."""
    return f"upload to {project}"


def planned_bytes(services: Services, spec: JobSpec, layout: Layout, kept_bytes: int = 0) -> int:
    """Maximum bytes of models and states that a run keeps: the first, the best, the newest, and one being made."""
    kept = min(spec.retention.models or services.keep_models, spec.job.rounds)
    whole = kept + 3 + 2 * (spec.iterate_averaging is not None)
    states = 2 * len(optimiser_of(spec).state_names) * STATE_BYTES * layout.size
    return whole * layout.size_bytes + states + 2 * kept_bytes


def check_averaging(spec: JobSpec, layout: Layout) -> None:
    """Refuse a mean of 16-bit models: rounding would lose most of its steps."""
    narrow = [one for one in layout.tensors if one.dtype not in {Dtype.FLOAT32, Dtype.FLOAT64}]
    if spec.iterate_averaging is not None and narrow:
        raise InvalidRequestError(
            "job.iterate_averaging",
            f"tensor {narrow[0].name!r} is {narrow[0].dtype.value}: a mean of models needs float32 or float64",
            "leave [iterate_averaging] out, or submit a model of wider tensors",
        )


async def _check_owned(services: Services, project: str, blob: str) -> None:
    """Refuse an initial model that belongs to another project, even if the operator knows its name.

    Raises:
        BlobMissingError: as for a model that does not exist.
    """

    def is_named(connection: Connection) -> bool:
        return len(projects.listed(connection)) == 1 or project in projects.naming_blob(connection, blob)

    uploaded = services.leases.holds(upload_owner(project), blob, services.clock())
    if not uploaded and not await services.reader.run(is_named):
        raise BlobMissingError(blob)


async def _check_quota(services: Services, name: str, planned: int, at_work: Collection[Planned]) -> None:
    """Refuse a run whose models, together with those of the project's other runs, would exceed its quota."""

    def read(connection: Connection) -> tuple[projects.Project, frozenset[str]]:
        without = [one.run for one in at_work]
        return projects.get(connection, name), projects.blobs_of(connection, name, without=without)

    project, blobs = await services.reader.run(read)
    if project.max_model_bytes is None:
        return
    facts = await services.call(services.blobs.stored)
    held = sum(facts[blob].stored_bytes for blob in blobs if blob in facts)
    check_model_bytes(project, held + sum(one.model_bytes for one in at_work), planned)


async def _check_model(services: Services, layout: Layout, blob: str) -> None:
    manifest = await services.call(services.blobs.manifest, blob)
    if manifest.size_bytes != layout.size_bytes:
        raise InvalidRequestError(
            "job.model", f"the initial model has {manifest.size_bytes} bytes, its layout {layout.size_bytes}"
        )
    await services.call(check_finite, services.blobs, blob, layout)


async def _trained_first(services: Services, spec: JobSpec, layout: Layout, blob: str) -> tuple[str, Layout]:
    """The initial model with frozen tensors last; rewritten if they are elsewhere."""
    wanted = trained_first(spec, layout)
    if wanted.digest == layout.digest:
        return blob, layout
    written = await services.call(in_order, services.blobs, blob, layout, wanted)
    services.leases.hold(f"reordered {written}", written, until=services.clock() + REORDERED_LEASE_S)
    return written, wanted


async def _check_room(services: Services, layout: Layout, spec: JobSpec, elements: int, kept_bytes: int) -> None:
    """Check that a round fits on the disk: new model, optimiser states, every member's update, and stored noise."""
    tensors = 1 + len(optimiser_of(spec).state_names) + (spec.iterate_averaging is not None)
    models_bytes = layout.size_bytes * tensors
    updates_bytes = payload_bytes(spec.aggregation.wire_encoding, elements) * spec.cohort.invited
    await services.call(services.room.require, "a round of this run", models_bytes + updates_bytes + kept_bytes)


def check_evaluator(services: Services, spec: JobSpec) -> None:
    """Refuse a job whose evaluator the server lacks, or whose deciding metric no evaluator measures.

    Raises:
        InvalidRequestError: shows the metric, or the installed evaluators.
    """
    name = spec.evaluation.server
    for metric in to_run_policy(spec).deciding_metrics if name is None else ():
        if metric.startswith(SERVER_METRIC):
            raise InvalidRequestError(
                "job.metric",
                f"{metric} decides which model is the best or when to stop, but no evaluator of the server measures it",
                'name one with evaluation.server = "...", or choose a metric eval/... of the participants',
            )
    if name is not None and name not in services.evaluators:
        installed = ", ".join(sorted(services.evaluators)) or "none"
        raise InvalidRequestError(
            "job.evaluator",
            f"evaluation.server = {name!r}: no such evaluator on this server; installed: {installed}",
            "start the server with --evaluator NAME=MODULE:FUNCTION",
        )
