"""What is measured, whoever runs it: the record that a script fills and a framework builds."""

import csv
from dataclasses import dataclass
from pathlib import Path

COUNTS = Path(__file__).with_name("flops.csv")


@dataclass(frozen=True)
class Workload:
    """One kind of work. A framework's builder is looked up by `name`."""

    name: str  # "image"
    model: str
    unit: str  # what throughput counts, in the plural: "images"
    items_per_step: int
    item_shape: tuple[int, ...]  # of one item, channels first
    classes: int
    parameters: int | None  # trainable ones; None where nobody has counted
    flops_per_item: int | None  # of the measured phase; 1 multiply-add = 2 FLOPs

    @property
    def batch_bytes(self):
        """Size of one float32 batch of inputs."""
        size = 4 * self.items_per_step
        for side in self.item_shape:
            size *= side
        return size


def image_counts(model, image_size, phase):
    """(trainable parameters, FLOPs an image) of an image model, from flops.csv; None where not counted.

    Parts of training: forward is what inference is, backward the rest; the optimizer's are not counted.

    Convolutions and matrix products are counted, at one input size; tests/count_flops.py makes the file.
    """
    with COUNTS.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["model"] == model:
                forward, training = int(row["inference_flops"]), int(row["training_flops"])
                by_phase = {"inference": forward, "forward": forward, "training": training}
                by_phase["backward"] = training - forward
                same_size = int(row["image_size"]) == image_size
                return int(row["parameters"]), by_phase.get(phase) if same_size else None
    return None, None
