"""Statistics of rows that stay with their owners: counts, moments, histograms and quantiles from sums of integers.

Read ``blocks`` for the content of an answer, ``answering`` for how a participant computes it, ``disclosure`` for what
the server does with the sum of all answers, and ``findings`` for the figures. All functions here are pure.

::

    from atoll.statistics import Findings

    scaling = Findings.load("overview.json").scaling(["age", "creatinine"])
    features = scaling.standardise(features)
"""

from atoll.statistics.answering import Answerer
from atoll.statistics.columns import Table
from atoll.statistics.disclosure import Disclosure
from atoll.statistics.errors import AnswersError, FindingsError, StatisticsError, TableError
from atoll.statistics.figures import CategoryFindings, GroupFindings, NumericErrors, NumericFindings, Quantile
from atoll.statistics.findings import Findings
from atoll.statistics.noised import release_noised, row_norm
from atoll.statistics.records import FIELDS
from atoll.statistics.scaling import Scaling
from atoll.statistics.state import first_state, state_shapes
from atoll.wire.statistics_query import CategoryColumn, NoisedStatistics, StatisticsQuery

__all__ = [
    "FIELDS",
    "Answerer",
    "AnswersError",
    "CategoryColumn",
    "CategoryFindings",
    "Disclosure",
    "Findings",
    "FindingsError",
    "GroupFindings",
    "NoisedStatistics",
    "NumericErrors",
    "NumericFindings",
    "Quantile",
    "Scaling",
    "StatisticsError",
    "StatisticsQuery",
    "Table",
    "TableError",
    "first_state",
    "release_noised",
    "row_norm",
    "state_shapes",
]
