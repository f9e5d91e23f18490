"""How long it takes, how sure that is, and the proof that the result is right."""


class MeasurementError(Exception):
    """A measurement that has no valid result; becomes the row's status and its reason."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status
