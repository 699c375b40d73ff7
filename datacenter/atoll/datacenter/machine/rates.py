"""Rates of a machine: matrix products, memory and links, from a data sheet or measured by ``atoll silo bench``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll.datacenter.errors import DatacenterError

MAX_FILE_BYTES = 1 << 20

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RatesError(DatacenterError):
    """No rates have this name, or a file does not contain rates."""

    exit_code = 2


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Link(_Value):
    """A link between two ranks, in one direction.

    Attributes:
        alpha_s: seconds until a message's first byte arrives (the startup time of Thakur et al. 2005, section 3).
        bytes_per_s: bytes that one rank sends per second once data flows (1 / beta).
    """

    alpha_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    bytes_per_s: _Positive


class MatmulRates(_Value):
    """FLOP/s of dense matrix products (no structured sparsity), by number format of the factors; None if not known."""

    float32: _Positive | None = None
    tfloat32: _Positive | None = None
    bfloat16: _Positive | None = None
    float16: _Positive | None = None
    float8: _Positive | None = None

    def known(self) -> dict[str, float]:
        """Return the known rates by number format."""
        return {name: rate for name, rate in self if rate is not None}


class MachineRates(_Value):
    """Rates of one rank's device and of its links.

    Attributes:
        name: name of the device.
        source: origin of the figures: a data sheet, or the measurement.
        matmul_flops_per_s: rates of dense matrix products.
        memory_bytes_per_s: memory bandwidth; reads and writes both count.
        memory_bytes: memory of one device.
        ranks_per_node: devices joined by ``intra``.
        intra: link between two ranks of one node.
        inter: link between two ranks of different nodes; each rank has its own share of the network.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    source: Annotated[str, Field(min_length=1, max_length=1000)]
    matmul_flops_per_s: MatmulRates
    memory_bytes_per_s: _Positive
    memory_bytes: Annotated[int, Field(ge=1)]
    ranks_per_node: Annotated[int, Field(ge=1)]
    intra: Link
    inter: Link

    def matmul(self, number_format: str) -> float:
        """Return the FLOP/s of matrix products in this format.

        Raises:
            RatesError: if the rate is not known; names the formats that are.
        """
        known = self.matmul_flops_per_s.known()
        if (rate := known.get(number_format)) is None:
            there = ", ".join(known) or "none"
            raise RatesError(f'{self.name}: no rate of matrix products in "{number_format}" is known; known: {there}')
        return rate


_NVLINK_ALPHA_S, _NETWORK_ALPHA_S = 3.4e-6, 14e-6
"""Hop latencies (ring, Simple) in the tuning table of NCCL 2.23 (src/graph/tuning.cc); data sheets have none."""


def _sheet(
    name: str,
    source: str,
    tera: Mapping[str, float],
    *,
    memory_gib: float,
    memory_tb_per_s: float,
    intra_gb_per_s: float,
    inter_gb_per_s: float,
) -> MachineRates:
    return MachineRates(
        name=name,
        source=source,
        matmul_flops_per_s=MatmulRates(**{known: rate * 1e12 for known, rate in tera.items()}),
        memory_bytes_per_s=memory_tb_per_s * 1e12,
        memory_bytes=int(memory_gib * 2**30),
        ranks_per_node=8,
        intra=Link(alpha_s=_NVLINK_ALPHA_S, bytes_per_s=intra_gb_per_s * 1e9),
        inter=Link(alpha_s=_NETWORK_ALPHA_S, bytes_per_s=inter_gb_per_s * 1e9),
    )


_HOPPER: Mapping[str, float] = {
    "float32": 66.9,
    "tfloat32": 494.7,
    "bfloat16": 989.4,
    "float16": 989.4,
    "float8": 1978.9,
}

DATA_SHEETS: Mapping[str, MachineRates] = MappingProxyType(
    {
        "a100": _sheet(
            "NVIDIA A100 SXM 80 GB",
            "NVIDIA A100 data sheet (2021): dense rates, half of NVLink's 600 GB/s; "
            "DGX A100: 200 Gb/s InfiniBand a GPU",
            {"float32": 19.5, "tfloat32": 156, "bfloat16": 312, "float16": 312},
            memory_gib=80e9 / 2**30,
            memory_tb_per_s=2.039,
            intra_gb_per_s=300,
            inter_gb_per_s=25,
        ),
        "h100": _sheet(
            "NVIDIA H100 SXM 80 GB",
            "NVIDIA H100 architecture white paper (2022), table 2: dense rates, half of NVLink's 900 GB/s; DGX H100: "
            "400 Gb/s InfiniBand a GPU; memory as its driver reports",
            _HOPPER,
            memory_gib=79.6,
            memory_tb_per_s=3.35,
            intra_gb_per_s=450,
            inter_gb_per_s=50,
        ),
        "h100-500w": _sheet(
            "NVIDIA H100 limited to 500 W, HBM2e",
            "the part of torchtitan's tables (Liang et al. 2025): an H100 SXM at 500 W with 2.4 TB/s of memory; dense "
            "rates are those of the unlimited part",
            _HOPPER,
            memory_gib=79.6,
            memory_tb_per_s=2.4,
            intra_gb_per_s=450,
            inter_gb_per_s=50,
        ),
        "h200": _sheet(
            "NVIDIA H200 SXM 141 GB",
            "NVIDIA H200 data sheet (2023): the H100's rates, 141 GB at 4.8 TB/s, half of NVLink's 900 GB/s; DGX H200: "
            "400 Gb/s InfiniBand a GPU; memory as its driver reports",
            _HOPPER,
            memory_gib=140.4,
            memory_tb_per_s=4.8,
            intra_gb_per_s=450,
            inter_gb_per_s=50,
        ),
        "b200": _sheet(
            "NVIDIA B200 SXM 180 GB",
            "NVIDIA DGX B200 and HGX B200 data sheets (2024), an eighth of each, dense (half of the rates with "
            "sparsity), half of NVLink's 1.8 TB/s, 400 Gb/s InfiniBand a GPU",
            {"float32": 75, "tfloat32": 1125, "bfloat16": 2250, "float16": 2250, "float8": 4500},
            memory_gib=180e9 / 2**30,
            memory_tb_per_s=8,
            intra_gb_per_s=900,
            inter_gb_per_s=50,
        ),
        "mi300x": _sheet(
            "AMD Instinct MI300X 192 GB",
            "AMD Instinct MI300X data sheet (2023): dense rates, seven Infinity Fabric links of 64 GB/s each way; "
            "400 Gb/s network a GPU; hop latencies are NVIDIA's",
            {"float32": 163.4, "tfloat32": 653.7, "bfloat16": 1307.4, "float16": 1307.4, "float8": 2614.9},
            memory_gib=192e9 / 2**30,
            memory_tb_per_s=5.3,
            intra_gb_per_s=448,
            inter_gb_per_s=50,
        ),
    }
)
"""Peak rates by name, for nodes of eight: upper bounds that no program reaches."""


DEFAULT_SHEET = "h100"
"""Data sheet to plan with if no other one is named."""


def sheet_of(device_name: str) -> MachineRates | None:
    """Return the data sheet of a GPU by the name that its driver reports; None if there is none."""
    name = device_name.lower()
    return next((rates for key, rates in DATA_SHEETS.items() if key in name), None)


def save_rates(rates: MachineRates, path: Path) -> None:
    """Write rates as JSON.

    Raises:
        OSError: if the file cannot be written.
    """
    path.write_text(rates.model_dump_json(indent=1) + "\n", encoding="utf-8")


def load_rates(path: Path) -> MachineRates:
    """Read rates that ``save_rates`` wrote.

    Raises:
        RatesError: if the file holds anything else; names file, key, value and what is allowed.
        OSError: if the file cannot be read.
    """
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise RatesError(f"{path}: {size} bytes; a file of rates has at most {MAX_FILE_BYTES}")
    try:
        return MachineRates.model_validate_json(path.read_bytes())
    except ValidationError as error:
        lines = (f"{path}: {_problem(item)}" for item in error.errors())
        raise RatesError("\n".join(lines) + "\n`atoll silo bench --out FILE` writes such files") from None


def rates_of(name_or_path: str) -> MachineRates:
    """Return rates by a name of ``DATA_SHEETS``, or from a file if the name ends in ``.json``.

    Raises:
        RatesError: if there is no such name, listing the known names; see also ``load_rates``.
        OSError: if the file cannot be read.
    """
    if name_or_path.endswith(".json"):
        return load_rates(Path(name_or_path))
    if (found := DATA_SHEETS.get(name_or_path.lower())) is None:
        raise RatesError(
            f'no rates of "{name_or_path}"; there are {", ".join(DATA_SHEETS)}, or a .json file that '
            "`atoll silo bench --out FILE` wrote"
        )
    return found


def rates_beside(name_or_path: str, folder: Path) -> MachineRates:
    """Return ``rates_of`` a name, or of a file whose path is relative to ``folder``."""
    return rates_of(str(folder / name_or_path) if name_or_path.endswith(".json") else name_or_path)


def _problem(item: Mapping[str, object]) -> str:
    place, found = item["loc"], item.get("input")
    key = ".".join(map(str, place)) if isinstance(place, tuple) else ""
    shown = "" if isinstance(found, dict | bytes) else f" = {json.dumps(found, default=str)[:60]}"
    return f"{key}{shown}: {item['msg']}" if key else str(item["msg"])
