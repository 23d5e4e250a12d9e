"""Plugs: what joins byname to other tools."""
