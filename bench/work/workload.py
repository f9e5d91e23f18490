"""What is measured, whoever runs it: the record that a script fills and a framework builds."""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.settings import SettingError

COUNTS = Path(__file__).with_name("flops.csv")
CIFAR_SIDE, CIFAR_CLASSES = 32, 10
MAX_LAYERS = 1000
LEARNING_RATES = {"sgd": 0.01, "adam": 1e-5}


@dataclass(frozen=True)
class Workload:
    """One kind of work. A framework's builder is looked up by `name`."""

    name: str  # "image", "mlp" or "transformer"
    model: str
    unit: str  # what throughput counts, in the plural: "images"
    items_per_step: int
    item_shape: tuple[int, ...]  # of one item, channels first
    classes: int
    parameters: int | None  # trainable ones; None where nobody has counted
    flops_per_item: int | None  # of the measured phase; 1 multiply-add = 2 FLOPs
    # (items in a batch, seed) -> list of (inputs, labels), or of an operator's operands, as data.py makes them
    batches: Callable[[int, int], list]
    columns: dict = field(default_factory=dict)  # of the row, that only this kind of work fills
    # () -> (train inputs, train labels, test inputs, test labels), where whole epochs can be trained
    dataset: Callable[[], tuple] | None = None
    # (operands) -> (indices into the output, float64 values there), where the work is one operator
    samples: Callable[[tuple], tuple] | None = None

    @property
    def batch_bytes(self):
        """Size of one float32 batch of inputs."""
        size = 4 * self.items_per_step
        for side in self.item_shape:
            size *= side
        return size


def flops_of_phase(phase, forward, first_layer=0):
    """FLOPs of a phase whose forward pass takes so many; None for what has no count, the optimizer.

    The backward pass takes each product twice more, for the gradients of its weights and of its inputs. The
    data need no gradient: first_layer is what the products that read them take.
    """
    by_phase = {"inference": forward, "forward": forward, "backward": 2 * forward - first_layer}
    by_phase["training"] = forward + by_phase["backward"]
    return by_phase.get(phase)


def image_counts(model, image_size, phase):
    """(trainable parameters, FLOPs an image) of an image model, from flops.csv; None where not counted.

    Convolutions and matrix products are counted, at one input size; tests/frameworks/count_flops.py makes the file.
    """
    with COUNTS.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["model"] == model:
                forward, training = int(row["inference_flops"]), int(row["training_flops"])
                same_size = int(row["image_size"]) == image_size
                flops = flops_of_phase(phase, forward, first_layer=3 * forward - training)
                return int(row["parameters"]), flops if same_size else None
    return None, None


def mlp_widths(model):
    """Widths of the hidden layers of mlp-<depth>x<width> or mlp-<width>-<width>-...; raises SettingError."""
    repeated = re.fullmatch("mlp-([1-9][0-9]{0,3})x([1-9][0-9]{0,5})", model)
    if repeated and int(repeated[1]) <= MAX_LAYERS:
        return (int(repeated[2]),) * int(repeated[1])
    if re.fullmatch("mlp(-[1-9][0-9]{0,5})+", model):
        return tuple(int(width) for width in model.split("-")[1:])
    raise SettingError(
        f"MODEL={model!r} must be mlp-DEPTHxWIDTH or mlp-WIDTH-WIDTH-..., as mlp-5x1024 or mlp-3000-1000"
    )


def mlp_counts(widths, phase):
    """(trainable parameters, FLOPs an image) of dense layers with biases, on CIFAR-10."""
    sides = list(pairwise((3 * CIFAR_SIDE**2, *widths, CIFAR_CLASSES)))
    first_layer, *_ = products = [2 * inputs * outputs for inputs, outputs in sides]
    return sum((inputs + 1) * outputs for inputs, outputs in sides), flops_of_phase(phase, sum(products), first_layer)


@dataclass(frozen=True)
class Encoder:
    """Sizes of a BERT-like encoder and of the classifier on top, as its authors published them."""

    layers: int
    width: int
    heads: int
    inner: int  # width inside the feed-forward part
    token_types: int  # kinds of segments with an embedding of their own; 0: none
    norm_epsilon: float = 1e-12
    vocabulary: int = 30522
    positions: int = 512
    dropout: float = 0.1
    labels: int = 8

    @property
    def is_bert(self):
        """BERT has a tanh before its classifier and dropout after attention; DistilBERT a ReLU, and none."""
        return self.token_types > 0


# Devlin et al. 2018 (arXiv 1810.04805); Sanh et al. 2019 (arXiv 1910.01108).
ENCODERS = {
    "distilbert": Encoder(layers=6, width=768, heads=12, inner=3072, token_types=0),
    "bert-base": Encoder(layers=12, width=768, heads=12, inner=3072, token_types=2),
    "bert-large": Encoder(layers=24, width=1024, heads=16, inner=4096, token_types=2),
}


def encoder_counts(encoder, length, phase):
    """(trainable parameters, FLOPs a sequence) of an encoder with its classifier.

    Products of a layer and token: queries, keys, values and output (4 w w), the feed-forward part (2 w f), scores and
    mean of values (2 w length). The classifier reads the first token. Looking an embedding up is no product.
    """
    w, f = encoder.width, encoder.inner
    tables = (encoder.vocabulary + encoder.positions + encoder.token_types) * w
    in_layer = 4 * (w + 1) * w + (w + 1) * f + (f + 1) * w + 4 * w  # two normalisations
    head = (w + 1) * w + (w + 1) * encoder.labels
    parameters = tables + 2 * w + encoder.layers * in_layer + head
    products = encoder.layers * length * (4 * w * w + 2 * w * f + 2 * w * length) + w * w + w * encoder.labels
    return parameters, flops_of_phase(phase, 2 * products)
