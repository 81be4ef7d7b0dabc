"""Experiment files and presets that ship with tpudet, as data of the package."""
