"""The planner: which layouts of a job fit, how fast they would be, and how each number is found."""

from atoll.datacenter.plan.layout import Layout, Task, layout_of
from atoll.datacenter.plan.prediction import Prediction, predict_layout
from atoll.datacenter.plan.search import NothingFitsError, search
from atoll.datacenter.plan.step_time import Machine

__all__ = ["Layout", "Machine", "NothingFitsError", "Prediction", "Task", "layout_of", "predict_layout", "search"]
