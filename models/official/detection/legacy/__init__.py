"""Experiment files of the predecessor (tensorflow/tpu, tpu_models) and what they mean here."""
