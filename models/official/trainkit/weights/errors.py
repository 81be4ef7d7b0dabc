"""What goes wrong with the weights of others."""


class WeightsError(ValueError):
    """Weights that cannot be read or do not fit the model; the message says why and what to do."""
