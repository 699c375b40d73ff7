"""Render pages from templates: one Jinja2 set-up, which escapes every value on a page."""

from __future__ import annotations

from collections.abc import Callable

import jinja2

from atoll.text.figures import bound, counted, figure, in_bytes, remainder


def environment(package: str, **filters: Callable[..., object]) -> jinja2.Environment:
    """The templates in a package's folder ``templates``, and the shared ones in ``pages`` here.

    An undefined name in a template is an error.

    Args:
        package: import name of the package.
        filters: besides those for figures, which all pages have.
    """
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package, "templates"), jinja2.PackageLoader("atoll.text", "pages")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        bound=bound, counted=counted, figure=figure, in_bytes=in_bytes, remainder=remainder, words=_words, **filters
    )
    return made


def _words(status: str) -> str:
    return status.replace("_", " ")
