"""The machine: cost models of collectives, rates of devices and links, and their measurement."""

from atoll.datacenter.machine.cost import Algorithm, Collective, Cost, Group, cost, predict
from atoll.datacenter.machine.rates import (
    DATA_SHEETS,
    DEFAULT_SHEET,
    Link,
    MachineRates,
    MatmulRates,
    RatesError,
    load_rates,
    rates_beside,
    rates_of,
    save_rates,
    sheet_of,
)

__all__ = [
    "DATA_SHEETS",
    "DEFAULT_SHEET",
    "Algorithm",
    "Collective",
    "Cost",
    "Group",
    "Link",
    "MachineRates",
    "MatmulRates",
    "RatesError",
    "cost",
    "load_rates",
    "predict",
    "rates_beside",
    "rates_of",
    "save_rates",
    "sheet_of",
]
