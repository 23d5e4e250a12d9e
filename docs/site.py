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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with fences that have only their language."""
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
