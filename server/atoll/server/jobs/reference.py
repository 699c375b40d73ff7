"""Writes ``docs/job-reference.md`` from the models: ``python -m atoll.server.jobs.reference docs/job-reference.md``."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.server.jobs.spec import JobSpec
from atoll.server.jobs.training import MAX_SETTINGS, MAX_TEXT_CHARS
from atoll.settings.describe import section_of
from atoll.settings.reference import chapters, write_reference

MINIMAL = """\
[job]
name = "digits"
rounds = 20

[model]
initial = "init.safetensors"

[cohort]
size = 8
"""

TYPICAL = """\
[job]
name = "ward-7 triage"
rounds = 200

[model]
initial = "triage.safetensors"

[cohort]
size = 50
over_selection = 1.3      # invite 65, close at 50 reports
quorum = 30
sampler = "availability"

[straggler]
learned = { quantile = 0.9, factor = 1.5, max_s = 1800 }
late = "carry"            # a late report counts in the next round, for less
max_staleness = 3

[aggregation]
max_weight = 5000
encoding = "bfloat16"     # half the bytes up

[optimiser]
name = "fedadam"
lr = 0.01

[training]                # handed to every participant as it stands
epochs = 2
batch_size = 32
lr = 0.05
proximal_mu = 0.01        # FedProx

[evaluation]
every = 10
server = "holdout"        # installed by the operator
"""

PRIVATE = """\
[job]
name = "ward-7 triage"
rounds = 400

[model]
initial = "triage.safetensors"

[cohort]
size = 200
sampler = "poisson"
rate = 0.05               # of a population of 4000

[aggregation]
weighting = "uniform"     # or a max_weight: one participant's weight is what noise must hide

[evaluation]
server = "holdout"        # participants' own metrics are not released

[privacy]
population = "ward-7"     # its ledger adds up all runs
epsilon = 8.0
delta = 1e-5
clip = 0.5
"""

_HEAD = f"""\
<!-- Generated from server/atoll/server/jobs/tables.py by `python -m atoll.server.jobs.reference`; do not edit. -->
# Job reference

A job is one TOML file, given to `atoll run submit JOB.toml`. It is validated whole before anything is sent, and again
by the server: every problem is listed with file, line, key, value and what is allowed. Unknown keys are errors.
From Python a job is [`Job(...)`](operator.md#submit-a-job), with a class for each section.

The smallest job:

```toml
{MINIMAL}```

A job for a real population:

```toml
{TYPICAL}```

A job that promises differential privacy ([how it is accounted](privacy/accounting.md)); `atoll privacy plan JOB.toml`
shows what it costs:

```toml
{PRIVATE}```
"""

_TRAINING = f"""\
Free settings for the participants' trainers, such as `epochs`, `batch_size`, `lr`, `proximal_mu` (FedProx: weight of
the proximal term). Each is a number, a whole number, true or false, or text of up to {MAX_TEXT_CHARS} characters;
at most {MAX_SETTINGS} of them. A trainer reads them as `task.settings`; a participant's own policy may refuse any of
them. Nothing in them is ever executed. A key that no trainer reads has no effect; if a trainer asks for a similar one,
the log of the participant, and of `atoll simulate`, names both.
"""


def reference() -> str:
    """The job reference, as Markdown."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for name, field in JobSpec.model_fields.items():
        if section := section_of(field):
            yield from chapters(name, section)
        else:
            yield f"## `[{name}]`\n\n{_TRAINING}"


if __name__ == "__main__":
    write_reference("atoll.server.jobs.reference", "docs/job-reference.md", reference)
