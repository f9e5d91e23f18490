"""The data that the work runs on, as NumPy arrays, the same in every framework."""

import numpy as np

# One repeated batch can be cached, by hardware or by a framework; four in rotation are not.
RESIDENT_BATCHES = 4


def image_batches(batch_size, shape, classes, seed):
    """Seeded batches that stay on the device.

    Noise of the mean and spread of normalised photographs: zeros would run faster and draw less power.

    Args:
        batch_size: images in one batch.
        shape: (channels, height, width).
        classes: labels are drawn from range(classes).
        seed: the same seed gives the same batches.

    Returns:
        A list of (images, labels): float32 of shape (batch_size, *shape), int64 of shape (batch_size,).
    """
    random = np.random.default_rng(seed)
    return [
        (
            random.standard_normal((batch_size, *shape), dtype=np.float32),
            random.integers(classes, size=batch_size),
        )
        for _ in range(RESIDENT_BATCHES)
    ]
