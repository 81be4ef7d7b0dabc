"""Classifiers on the trainer of trainkit: they answer image challenges and pretrain backbones."""
