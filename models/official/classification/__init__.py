"""Classifiers on the trainer of trainkit, for image challenges and for pretraining backbones."""
