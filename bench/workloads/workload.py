"""Workload: a script describes its work in this record, and a framework builds the model from it."""

import csv
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.settings import SettingError

COUNTS = Path(__file__).with_name("flops.csv")
CIFAR_SIDE, CIFAR_CLASSES = 32, 10
TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000  # of CIFAR-10
MAX_LAYERS = 1000
LEARNING_RATES = {"sgd": 0.01, "adam": 1e-5}


@dataclass(frozen=True)
class Workload:
    """Describe one kind of work; a framework chooses the function that builds the model by `name`."""

    name: str  # "image", "mlp", "transformer" or "llm"; of an operator "matmul", "convolution" or "bandwidth"
    model: str
    unit: str  # what throughput counts, in the plural: "images"
    items_per_step: float  # a whole number, except the GB that a bandwidth operator moves
    item_shape: tuple[int, ...]  # of one item, channels first
    classes: int
    parameters: int | None  # number of trainable parameters; None: unknown
    flops_per_item: int | None  # in the measured phase; 1 multiply-add = 2 FLOPs; None: unknown
    # (batch size, seed) -> list of (inputs, labels); for an operator, list of its operands
    batches: Callable[[int, int], list[tuple]]
    columns: dict = field(default_factory=dict)  # columns of the row that other workloads leave blank
    # () -> (train inputs, train labels, test inputs, test labels); None: it cannot train epochs
    dataset: Callable[[], tuple] | None = None
    # operators only: (operands) -> (indices into the output, float64 values there)
    samples: Callable[[tuple], tuple] | None = None
    bytes_per_step: int | None = None  # that a step must read from memory; None: memory is not the limit
    resident_bytes: int = 0  # of weights and cache; 0: small

    @property
    def batch_bytes(self):
        """Return the size of one float32 batch of inputs."""
        return 4 * self.items_per_step * math.prod(self.item_shape)


def flops_of_phase(phase, forward, first_layer=0):
    """Return the FLOPs of a phase from those of a forward pass; None for the optimizer, which is not counted.

    The backward pass costs twice the forward pass: gradients of the weights and of each layer's inputs. The first
    layer needs no gradient of its inputs, so its forward FLOPs (first_layer) count only once.
    """
    backward = 2 * forward - first_layer
    by_phase = {"inference": forward, "forward": forward, "backward": backward, "training": forward + backward}
    return by_phase.get(phase)


def image_counts(model, image_size, phase):
    """Return (trainable parameters, FLOPs per image) of an image model; None for a count that flops.csv lacks.

    flops.csv counts convolutions and matmuls at one image size; tests/frameworks/count_flops.py writes it.
    """
    with COUNTS.open(newline="") as lines:
        row = next((row for row in csv.DictReader(lines) if row["model"] == model), None)
    if row is None:
        return None, None
    forward, training = int(row["inference_flops"]), int(row["training_flops"])
    flops = flops_of_phase(phase, forward, first_layer=3 * forward - training)
    return int(row["parameters"]), flops if int(row["image_size"]) == image_size else None


def mlp_widths(model):
    """Return the widths of the hidden layers of mlp-<depth>x<width> or mlp-<width>-<width>-...; raises SettingError."""
    repeated = re.fullmatch("mlp-([1-9][0-9]{0,3})x([1-9][0-9]{0,5})", model)
    if repeated and int(repeated[1]) <= MAX_LAYERS:
        return (int(repeated[2]),) * int(repeated[1])
    if re.fullmatch("mlp(-[1-9][0-9]{0,5})+", model):
        return tuple(int(width) for width in model.split("-")[1:])
    raise SettingError(
        f"MODEL={model!r} must be mlp-DEPTHxWIDTH or mlp-WIDTH-WIDTH-..., for example mlp-5x1024 or mlp-3000-1000; "
        f"at most {MAX_LAYERS} layers of 999999"
    )


def mlp_counts(widths, phase):
    """Return (trainable parameters, FLOPs per image) of dense layers with biases, on CIFAR-10."""
    layers = list(pairwise((3 * CIFAR_SIDE**2, *widths, CIFAR_CLASSES)))
    flops = [2 * inputs * outputs for inputs, outputs in layers]
    parameters = sum((inputs + 1) * outputs for inputs, outputs in layers)
    return parameters, flops_of_phase(phase, sum(flops), first_layer=flops[0])


@dataclass(frozen=True)
class Encoder:
    """Published sizes of a BERT-like encoder with a classifier for `labels` classes."""

    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int  # width inside the feed-forward part
    token_types: int  # number of segment embeddings; 0: none
    norm_epsilon: float = 1e-12
    vocab_size: int = 30522
    max_position_embeddings: int = 512
    dropout: float = 0.1
    labels: int = 8

    @property
    def is_bert(self):
        """Whether it is BERT: tanh before the classifier, dropout after attention; DistilBERT: ReLU, no dropout."""
        return self.token_types > 0


# Devlin et al. 2018 (arXiv 1810.04805); Sanh et al. 2019 (arXiv 1910.01108).
ENCODERS = {
    "distilbert": Encoder(num_layers=6, hidden_size=768, num_heads=12, intermediate_size=3072, token_types=0),
    "bert-base": Encoder(num_layers=12, hidden_size=768, num_heads=12, intermediate_size=3072, token_types=2),
    "bert-large": Encoder(num_layers=24, hidden_size=1024, num_heads=16, intermediate_size=4096, token_types=2),
}


def encoder_counts(encoder, length, phase):
    """Return (trainable parameters, FLOPs per sequence) of an encoder with its classifier.

    Multiply-adds per layer and token: query, key, value and output matmuls (4 w w), feed-forward (2 w f), attention
    scores and weighted values (2 w length). The classifier reads the first token only. Embedding lookups cost none.
    """
    w, f = encoder.hidden_size, encoder.intermediate_size
    embeddings = (encoder.vocab_size + encoder.max_position_embeddings + encoder.token_types) * w
    layer = 4 * (w + 1) * w + (w + 1) * f + (f + 1) * w + 4 * w  # two normalisations
    classifier = (w + 1) * w + (w + 1) * encoder.labels
    parameters = embeddings + 2 * w + encoder.num_layers * layer + classifier
    multiply_adds = encoder.num_layers * length * (4 * w * w + 2 * w * f + 2 * w * length) + w * w + w * encoder.labels
    return parameters, flops_of_phase(phase, 2 * multiply_adds)
