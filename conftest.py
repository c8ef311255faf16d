"""Hands pytest the plug-in."""

pytest_plugins = ["suites.plugin"]
