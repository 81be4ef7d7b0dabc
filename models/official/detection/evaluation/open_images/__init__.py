"""The metrics of the Open Images challenges, for boxes and masks."""
