"""A set of annotated images to shards of TFRecords with a manifest."""
