"""The fields that docs/json.md names."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "json.md"


def fields(section):
    """The fields that the page names in one of its tables."""
    text = re.split(r"\n##+ ", PAGE.read_text().partition(f"## {section}\n")[2])[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}
