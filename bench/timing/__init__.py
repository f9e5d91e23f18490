"""How long it takes, how sure that is, and the proof that the result is right."""

# Raised when a change of the method moves the numbers. 2: windows end with a read, every step is proved; 3: processes
# on a CPU keep their memory.
METHOD_VERSION = 3
MAX_UNEVEN = 0.05  # by which the mean rate may be below that of the median window


class MeasurementError(Exception):
    """A measurement that has no valid result; becomes the row's status and its reason."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status
