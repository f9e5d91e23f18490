"""How long it takes, and how sure that is."""

# Raised when a change of the method moves the numbers. 2: windows end with a read; 3: processes on a CPU keep their
# memory; 4: images have a brightness and a colour, and the output that was timed is compared.
METHOD_VERSION = 4
MAX_UNEVEN = 0.05  # by which the mean rate may be below that of the median window


class MeasurementError(Exception):
    """A measurement that has no valid result; becomes the row's status and its reason."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status
