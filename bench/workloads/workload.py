"""Workload: a script describes its work in this record, and a framework builds the model from it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bench.settings import SettingError
from bench.workloads.standard_set import STANDARD_SET

LEARNING_RATES = {"sgd": 0.01, "adam": 1e-5, "adamw": 3e-4}
LORA_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")  # each gets an adapter
LORA_SCALE = 2.0  # alpha / rank, so alpha = 2 x rank
BYTES = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}  # size of a number in each precision
BYTES |= {"mixed_float16": 4, "mixed_bfloat16": 4}  # size of a weight
# (bottleneck blocks, not pairs of 3 x 3 convolutions; blocks in each of the four stages): He et al. 2015, table 1.
RESNETS = {
    "resnet18": (False, (2, 2, 2, 2)),
    "resnet34": (False, (3, 4, 6, 3)),
    "resnet50": (True, (3, 4, 6, 3)),
    "resnet101": (True, (3, 4, 23, 3)),
    "resnet152": (True, (3, 8, 36, 3)),
}


@dataclass(frozen=True)
class Workload:
    """Describe one kind of work completely: its data, its model's sizes, its loss and its counts.

    A framework looks up `name` in its BUILDERS (or `model` in its OPERATORS).
    """

    name: str  # one of WORKLOADS in bench/settings.py, or for an operator "matmul", "bandwidth" ...
    model: str
    unit: str  # what throughput counts, in the plural: "images"
    items_per_step: float  # a whole number, except the GB that a bandwidth operator moves
    # (batch size, seed) -> batches: tuples of NumPy arrays, the model's inputs first, the loss's target last.
    # Without a loss they have no target. An operator's batches are its operands. Large ones are made one by one.
    make_batches: Callable[[int, int], Iterable[tuple]]
    make_checked: Callable[[int, int], list[tuple]] | None = None  # the same with smaller items, to check a model with
    loss: str | None = None  # "cross_entropy" or "mean_squared_error"; None: it cannot be trained
    sizes: Any = None  # what the builders of this kind of model read: pixels a side, widths, an Encoder, a Decoder
    parameters: int | None = None  # number of trainable parameters; None: unknown
    flops_per_item: int | None = None  # in the measured phase; 1 multiply-add = 2 FLOPs; None: unknown
    has_convolutions: bool = False  # then their precision is measured too
    batch_bytes: int = 0  # bytes of the inputs of a batch; 0 if they are small
    resident_bytes: int = 0  # operands, or a language model's weights, and its cache or gradients and optimizer
    bytes_per_step: int | None = None  # read from memory, without a model's weights; None: memory is not the limit
    columns: dict = field(default_factory=dict)  # columns of the row that other workloads leave blank
    dataset: Callable[[], tuple] | None = None  # () -> (train inputs, their labels, test inputs, their labels)
    samples: Callable[[tuple], tuple] | None = None  # an operator's: (operands) -> (indices into its output, values)

    def inputs_of(self, batch):
        """Return the model's inputs of a batch, which also has a target if there is a loss."""
        return batch[:-1] if self.loss else batch


# {a model's name: how it is printed}.
MODELS = {each.model: each.title.partition(",")[0] for each in STANDARD_SET}
MODELS |= {"bert-base": "BERT-base", "ddpm-cifar10": "DDPM", "sd-1.5": "Stable Diffusion 1.5", "qwen3-4b": "Qwen3 4B"}
MODELS |= {"qwen3-0.6b": "Qwen3 0.6B", "llama-3.2-3b": "Llama 3.2 3B", "llama-3.1-8b": "Llama 3.1 8B"}
MODELS |= {"matmul-peak": "best matmul", "matmul-8bit": "matmul"}


def find_model(asked, models):
    """Return the name of a model, one of `models`, in lower case; raises SettingError for an unknown one."""
    if asked.lower() not in models:
        raise SettingError(f"MODEL={asked!r} is not a known model: set one of {', '.join(models)}")
    return asked.lower()


def flops_of_phase(phase, forward, backward):
    """Return the FLOPs of a phase from those of both passes; None for the optimizer, which is not counted.

    A backward pass costs twice the forward pass, for the gradients of the weights and of each layer's inputs. A layer
    that reads the data needs no gradient of its inputs, so it counts once.
    """
    by_phase = dict.fromkeys(("inference", "prefill", "decode", "forward"), forward)
    return (by_phase | {"backward": backward, "training": forward + backward}).get(phase)
