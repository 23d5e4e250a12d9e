"""JSON facts: findings, censuses, growth and lines of a program as values that JSON has."""

from __future__ import annotations

from typing import Any

from byname.diagnose.finding import Finding
from byname.memory.census import Census, StorageRow
from byname.memory.growth import Growth
from byname.source.location import Site


def finding_facts(finding: Finding) -> dict[str, Any]:
    """Return a finding as values that JSON has."""
    return finding.row() | {"sites": [site_facts(site) for site in finding.sites]}


def census_facts(found: Census) -> dict[str, Any]:
    """Return a census as values that JSON has, with all rows. No row holds the values of a tensor."""
    return {
        "bytes": found.bytes,
        "unattributed": found.unattributed,
        "notes": list(found.notes),
        "rows": [_storage_facts(one) for one in found],
    }


def _storage_facts(one: StorageRow) -> dict[str, Any]:
    row = one.row()
    sites = {"site": one.site, "caller": one.site and one.site.caller}
    return {"holders": row.pop("held_by"), **row, **{key: site and site_facts(site) for key, site in sites.items()}}


def growth_facts(found: Growth) -> dict[str, Any]:
    """Return what grew as values that JSON has."""
    return {"rows": [one.row() | {"marks": one.marks} for one in found]}


def site_facts(site: Site) -> dict[str, Any]:
    """Return a line of the program as values that JSON has."""
    return {"file": site.file, "line": site.line, "function": site.function, "statement": site.statement}
