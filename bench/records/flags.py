"""The flags of a row, whoever raises them, and their words."""

# A flag marks a row to check before it is used. Each text is a reason, a colon and the fix.
FLAGS = {
    "drift": "the speed changed by more than 10 % during the measurement: repeat it when the machine is cool and idle",
    "recompiled": "the framework recompiled during the measurement: a larger MAX_SECONDS reduces the effect",
    "contended": "other programs used more than 10 % of the CPU time, or used the GPU before the run: close them",
    "barrier_shows": "synchronisation takes more than 5 % of this part's time: a larger BATCH_SIZE reduces its share",
    "short": "so few batches were measured that those prepared in advance may inflate the rate: set a larger "
    "MAX_SECONDS",
    "swapping": "the system swapped during the measurement: choose a smaller BATCH_SIZE or MODEL",
    "throttled": "the system reports that heat or power slows the device: cool it, or plug it in",
    "not_finite": "the output contains inf or NaN: choose another PRECISION",
    "other_version": "FRAMEWORK_VERSION is not the pinned version, so plots, the results page and `make compare` leave "
    "this row out: unset it for a result of this machine",
    "implausible": "more than 1.3 times the chip's peak or bandwidth in bench/records/peaks.csv: report it as an issue",
}
DISTURBING = ("contended", "swapping")  # but not throttled, which is normal on a Mac without a fan


def disturbing_flags(row):
    """List the flags of a row, a dict, by which something else slowed the machine; [] if the row is undisturbed."""
    return [flag for flag in DISTURBING if flag in (row["flags"] or "").split()]
