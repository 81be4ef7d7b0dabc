"""What every task shares: configs, records, images, backbones, training. Knows nothing of boxes."""
