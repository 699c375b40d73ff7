#!/usr/bin/env bash
# A job under plain torchrun: the same job file, without `atoll silo train`.
#   ./torchrun.sh JOB.toml [PROCESSES]                       on one machine
#   NODES=2 MEET=first-machine:29500 ./torchrun.sh JOB.toml 8    on each of two
set -euo pipefail

job=${1:?usage: torchrun.sh JOB.toml [PROCESSES]}
processes=${2:-1}

# torch 2.13: without this, restarted ranks meet in the store of the previous attempt.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Records what a hung collective waited for.
export TORCH_FR_BUFFER_SIZE=512
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

exec torchrun \
  --nnodes "${NODES:-1}" \
  --nproc-per-node "$processes" \
  --rdzv-backend c10d \
  --rdzv-endpoint "${MEET:-localhost:0}" \
  --rdzv-id "$(basename "$job" .toml)" \
  --max-restarts 3 \
  -m atoll.datacenter.train "$job"
