"""Write a run as TensorBoard curves (the extra ``tensorboard``): event files, without torch or TensorFlow."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

from atoll.operator.errors import BadInputError
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.operator.exports.tracked import Tracked

_SUFFIX = ".atoll"
_MAX_NAME = 80


class TensorBoardWriter:
    """Writes one run into its own folder below ``logdir``, named after the job and the run.

    A run that was written before is rewritten, so that TensorBoard shows each point once.

    Args:
        logdir: the folder for ``tensorboard --logdir``, which is created if missing.
        first: the run as it is now.

    Raises:
        ImportError: if tensorboard is not installed.
        BadInputError: if the folder cannot be written.
    """

    def __init__(self, logdir: Path, first: Tracked) -> None:
        self._protos = _Protos()
        self.folder = logdir / folder_name(first)
        self._written: set[tuple[str, int]] = set()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in self.folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
                old.unlink()
            self._writer = self._protos.writer(str(self.folder), filename_suffix=_SUFFIX)
        except OSError as error:
            raise BadInputError(f"{self.folder} cannot be written: {error.strerror or error}") from error
        self._protos.restart(self._writer, first.created_at)
        self._add(self._protos.hparams(first), first.created_at)
        self.write(first)

    def write(self, run: Tracked) -> None:
        """Add new points; at the end of the run, its status."""
        for point in run.points:
            if point.key not in self._written:
                self._written.add(point.key)
                self._add(self._protos.scalar(point.name, point.value), point.at, point.step)
        if run.ended_at is not None:
            self._add(self._protos.end(run.status, run.ended_at), run.ended_at)
        self._writer.flush()

    def close(self) -> None:
        """Write pending data and close the file."""
        self._writer.close()

    def _add(self, summary: Any, at: float, step: int = 0) -> None:
        self._writer.add_event(self._protos.event(wall_time=at, step=step, summary=summary))


class _Protos:
    """The parts of tensorboard in use, imported when needed; tensorboard has no type information."""

    def __init__(self) -> None:
        try:
            self._events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self._summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
            self._hparams: Any = importlib.import_module("tensorboard.plugins.hparams.summary_v2")
            self._metadata: Any = importlib.import_module("tensorboard.plugins.hparams.metadata")
            self._data: Any = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")
            self._api: Any = importlib.import_module("tensorboard.plugins.hparams.api_pb2")
            files = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        except ImportError as error:
            raise ImportError(
                f"TensorBoard needs {error.name}: {install_hint('tensorboard')}", name=error.name
            ) from error
        self.event: Any = self._events.Event
        self.writer: Any = files.EventFileWriter

    def restart(self, writer: Any, at: float) -> None:
        """Make a running TensorBoard forget the points of removed files."""
        log = self._events.SessionLog(status=self._events.SessionLog.START)
        writer.add_event(self.event(wall_time=at, step=0, session_log=log))

    def scalar(self, tag: str, value: float) -> Any:
        return self._summaries.Summary(value=[self._summaries.Summary.Value(tag=tag, simple_value=value)])

    def hparams(self, run: Tracked) -> Any:
        return self._hparams.hparams_pb(dict(run.params), trial_id=run.run, start_time_secs=run.created_at)

    def end(self, status: str, at: float) -> Any:
        """The end of a session; written here because ``hparams.summary`` needs TensorFlow."""
        value = self._api.STATUS_SUCCESS if status == "finished" else self._api.STATUS_FAILURE
        info = self._data.SessionEndInfo(status=value, end_time_secs=at)
        content = self._metadata.create_summary_metadata(self._data.HParamsPluginData(session_end_info=info))
        summary = self._summaries.Summary()
        tag, nothing = self._metadata.SESSION_END_INFO_TAG, self._metadata.NULL_TENSOR
        summary.value.add(tag=tag, metadata=content, tensor=nothing)
        return summary


def folder_name(run: Tracked) -> str:
    """A run's folder: its job's name without characters special in paths, and its id."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", run.name).strip("._")[:_MAX_NAME]
    return f"{readable}-{_plain(run.run)}" if readable else _plain(run.run)


def _plain(run: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", run)[:_MAX_NAME]
