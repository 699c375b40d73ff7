"""Hooks of ``properdocs``: add the repository's root pages to the site, and resolve links out of ``docs/``.

Documents link to each other, to README and to files such as ``deploy/server.toml`` by relative paths, which work in a
checkout too. On the site, the root's pages are placed beside those of ``docs/``, linked files are placed under
``files/``, and a link to a folder becomes its path as text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
MERMAID = Path(".tools") / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"
_FETCHED = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc=["']?https?:|<link[^>]*rel=["']?stylesheet[^>]*https?:""")
_LINK = re.compile(r"(\[[^\]\n]*\])\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root's pages, the files that pages link to outside ``docs/``, and the script that draws diagrams."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    linked = {target for page in files.documentation_pages() for target in _outside(page)}
    for target in sorted(linked):
        files.append(File.generated(config, f"files/{target}", abs_src_path=str(ROOT / target)))
    files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(ROOT / MERMAID)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite the links of a page to the locations of their targets on the site."""
    home = _home(page.file)

    def moved(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = _in_root(home, target)
        if path is None:
            return link[0]
        if (ROOT / path).is_dir() and path != "docs":
            return text.strip("[]")
        return f"{text}({os.path.relpath(_on_site(path), Path(page.file.src_uri).parent)}{anchor})"

    return _LINK.sub(moved, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would fetch scripts, pictures or styles from elsewhere.

    Raises:
        PluginError: naming the pages.
    """
    pages = sorted(Path(config.site_dir).rglob("*.html"))
    fetching = [str(page) for page in pages if _FETCHED.search(page.read_text(encoding="utf-8"))]
    if fetching:
        raise PluginError(f"these pages fetch from elsewhere: {', '.join(fetching)}; keep a copy in docs/assets")


def _home(file: File) -> Path:
    """The folder of a page, relative to the repository's root."""
    return Path() if file.src_uri in ROOT_PAGES else ("docs" / Path(file.src_uri)).parent


def _in_root(home: Path, target: str) -> str | None:
    """A link's target relative to the repository's root; None if it is an address or no such file exists."""
    if "://" in target or target.startswith("mailto:"):
        return None
    path = os.path.normpath(home / target)
    return path if (ROOT / path).exists() else None


def _on_site(path: str) -> str:
    """The location of a repository's file or page on the site."""
    if path in ROOT_PAGES:
        return path
    inside = path.removeprefix("docs/")
    return inside if inside != path else f"files/{path}"


def _outside(page: File) -> set[str]:
    """Files outside ``docs/`` that a page links to, other than the root's pages."""
    found = (_in_root(_home(page), link[2]) for link in _LINK.finditer(page.content_string))
    return {
        path
        for path in found
        if path is not None and not path.startswith("docs/") and path not in ROOT_PAGES and (ROOT / path).is_file()
    }
