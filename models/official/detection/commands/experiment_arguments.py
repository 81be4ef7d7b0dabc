"""Reads the experiment that a command's arguments describe."""

import argparse

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.config.decode import load_config


def experiment_config(arguments: argparse.Namespace) -> ExperimentConfig:
    """Reads the experiment of `add_experiment_arguments` or `add_config_arguments`."""
    return load_config(
        ExperimentConfig,
        arguments.config,
        overrides=arguments.overrides,
        params_override=arguments.params_override,
    )
