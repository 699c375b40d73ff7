"""Write the silo job reference: ``python -m atoll.datacenter.job.reference docs/silo-job-reference.md``."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.datacenter.job.silo_job import SiloJob
from atoll.settings.describe import section_of
from atoll.settings.reference import chapters, write_reference

MINIMAL = """\
[job]
name = "bytes"
steps = 1000

[model]
layers = 4
dim = 128
"""

TYPICAL = """\
[job]
name = "llama-8b"
steps = 100_000
seed = 1

[model]
vocab = 128_256
layers = 32
dim = 4096
heads = 32
kv_heads = 8
ffn_dim = 14_336
rope_theta = 500_000.0

[data]
source = "tokens"
path = "corpus.tokens"          # made by `atoll silo tokens --tokenizer tokenizer.json`

[batch]
sequence = 8192
global_batch = 512
micro_batch = 1

[optimiser]
lr = 3e-4

[schedule]
warmup_steps = 2000

[precision]
compute = "bfloat16"

[mesh]                          # 64 GPUs: 2 pipeline stages x 4 tensor-parallel x 8 that share parameters
pp = 2
tp = 4

[data_parallel]
method = "zero2"

[memory]
checkpointing = "selective"
compile = true

[checkpoint]
folder = "checkpoints"
"""

_HEAD = f"""\
<!-- Generated from datacenter/atoll/datacenter/job by `python -m atoll.datacenter.job.reference`; do not edit. -->
# Silo job reference

A silo's training job is one TOML file, the argument of `atoll silo train JOB.toml`. It is validated as a whole before a
process starts. The error lists every problem with file, line, key, value and what is allowed. Unknown keys are errors.
A job that does not fit the number of ranks is refused with the numbers. Paths are relative to the file.

The smallest job:

```toml
{MINIMAL}```

A job for 64 GPUs:

```toml
{TYPICAL}```
"""


def reference() -> str:
    """Return the silo job reference as Markdown."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for name, field in SiloJob.model_fields.items():
        section = section_of(field)
        if section is None:
            raise TypeError(f"[{name}] is not a section")
        yield from chapters(name, section)


if __name__ == "__main__":
    write_reference("atoll.datacenter.job.reference", "docs/silo-job-reference.md", reference)
