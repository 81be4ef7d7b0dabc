"""Strict experiment files: YAML to frozen dataclasses, with ranges, bases and versions."""
