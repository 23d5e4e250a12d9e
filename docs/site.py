"""What `make docs` does to pages and docstrings on the way to the site; elsewhere they read as they are.

A fence such as ```` ```python no-run ```` says how the tests take it, which the Markdown of the site does not know. A
docstring ends with its example, without a heading.
"""

from __future__ import annotations

import re
from textwrap import indent
from typing import Any

import griffe

_FENCE = re.compile(r"^( *```\w+) [\w -]+$", re.MULTILINE)
_EXAMPLE = re.compile(r"^>>> ", re.MULTILINE)
_START = """
<style>
.md-content img { width: min(100%, 38rem); aspect-ratio: 1165 / 895; object-fit: cover; object-position: top;
  border: thin solid #8885 }
.md-typeset .grid { grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)) }
@media (min-width: 60em) { .md-typeset pre > code { white-space: pre-wrap } }
</style>
"""
"""Beside the first page: the upper part of its picture, and answers without a bar to scroll them."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with fences that have only their language; the first page has no table of contents."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["toc"]
        markdown += _START
    return _FENCE.sub(r"\1", markdown)


class Examples(griffe.Extension):
    """Puts the example at the end of a docstring under a heading."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        docstring = obj.docstring
        found = _EXAMPLE.search(docstring.value) if docstring else None
        if docstring and found:
            text = docstring.value
            docstring.value = f"{text[: found.start()]}Examples:\n{indent(text[found.start() :], '    ')}"
