"""The pages' templates. Everything that is put into a page is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup
from starlette.responses import HTMLResponse

from atoll.console.charts import HEIGHT, WIDTH
from atoll.server import __version__
from atoll.server.control.timeline import why
from atoll.server.control.words import duration, kind_words, round_label
from atoll.text.templates import environment

if TYPE_CHECKING:
    import jinja2
    from starlette.responses import Response

    from atoll.console.sessions import Session


def page(
    name: str, values: Mapping[str, object], *, address: str, session: Session | None, status_code: int = 200
) -> Response:
    """A page made of the template ``name``.

    Args:
        name: file name of the template.
        values: values for the template. ``may`` says whether an action is offered; without it all are. ``projects`` are
            the projects to choose from, ``project`` is the chosen one, ``all_projects`` whether all may be chosen.
        address: of the server, for the page's foot.
        session: whose forms it may have.
        status_code: HTTP status.
    """
    text = (
        _environment()
        .get_template(name)
        .render(
            **{"may": _anything, "projects": (), "project": "", "all_projects": False, **values},
            address=address,
            form_token=session.form_token if session is not None else "",
        )
    )
    return HTMLResponse(text, status_code)


def _anything(_: str) -> bool:
    return True


@cache
def _environment() -> jinja2.Environment:
    made = environment(
        "atoll.console", duration=duration, kind_words=kind_words, round_label=round_label, when=_when, why=why
    )
    made.globals.update(version=__version__, chart_width=WIDTH, chart_height=HEIGHT)
    return made


def _when(seconds: float | None) -> Markup:
    """Date and time of this machine's zone."""
    if seconds is None:
        return Markup("–")  # noqa: RUF001 - a dash for what is not known
    local = datetime.fromtimestamp(seconds).astimezone()
    return Markup('<time datetime="{}">{}</time>').format(
        local.isoformat(timespec="seconds"), f"{local:%Y-%m-%d %H:%M:%S}"
    )
