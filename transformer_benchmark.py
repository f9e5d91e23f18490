"""Measure sequences per second of a BERT-like encoder with a classifier, in training or inference.

    make transformer
    MODEL=bert-base BATCH_SIZE=8 SEQUENCE_LENGTH=512 make transformer
    FRAMEWORK=tensorflow PHASE=inference .venv-tensorflow/bin/python transformer_benchmark.py

One step is one batch of sequences of random tokens, sorted into eight classes. The model is that of the transformers
library, with random weights; other frameworks build the same layers (BUILDERS in bench/frameworks/).
"""

import functools
import sys
from dataclasses import dataclass, replace

from bench.run import main
from bench.workloads import data
from bench.workloads.workload import Workload, find_model, flops_of_phase


@dataclass(frozen=True)
class Encoder:
    """Published sizes of a BERT-like encoder with a classifier for `labels` classes, and the length of its input."""

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
    sequence_length: int = 0  # tokens of an input, as SEQUENCE_LENGTH sets it

    @property
    def is_bert(self):
        """Return whether it is BERT (tanh, dropout after attention), else DistilBERT (ReLU, none)."""
        return self.token_types > 0


# Devlin et al. 2018 (arXiv 1810.04805); Sanh et al. 2019 (arXiv 1910.01108).
ENCODERS = {
    "distilbert": Encoder(num_layers=6, hidden_size=768, num_heads=12, intermediate_size=3072, token_types=0),
    "bert-base": Encoder(num_layers=12, hidden_size=768, num_heads=12, intermediate_size=3072, token_types=2),
    "bert-large": Encoder(num_layers=24, hidden_size=1024, num_heads=16, intermediate_size=4096, token_types=2),
}


def transformer_workload(settings):
    """Describe the work: a step takes one batch of sequences of SEQUENCE_LENGTH tokens."""
    model = find_model(settings.model, ENCODERS)
    length = settings.sequence_length
    encoder = replace(ENCODERS[model], sequence_length=length)
    parameters, flops = encoder_counts(encoder, settings.phase)
    return Workload(
        name="transformer",
        model=model,
        unit="sequences",
        items_per_step=settings.batch_size,
        make_batches=functools.partial(data.token_batches, encoder.vocab_size, encoder.labels, length),
        loss="cross_entropy",
        sizes=encoder,
        parameters=parameters,
        flops_per_item=flops,
        columns={"sequence_length": length, "data": "synthetic"},
    )


def encoder_counts(encoder, phase):
    """Return (trainable parameters, FLOPs per sequence) of an encoder with its classifier.

    Multiply-adds per layer and token: query, key, value and output matmuls (4 w w), feed-forward (2 w f), attention
    scores and weighted values (2 w length). The classifier reads the first token only. Embedding lookups cost none.
    """
    w = encoder.hidden_size
    f = encoder.intermediate_size
    length = encoder.sequence_length
    embeddings = (encoder.vocab_size + encoder.max_position_embeddings + encoder.token_types) * w
    layer = 4 * (w + 1) * w + (w + 1) * f + (f + 1) * w + 4 * w  # two normalisations
    classifier = (w + 1) * w + (w + 1) * encoder.labels
    parameters = embeddings + 2 * w + encoder.num_layers * layer + classifier
    multiply_adds = encoder.num_layers * length * (4 * w * w + 2 * w * f + 2 * w * length) + w * w + w * encoder.labels
    return parameters, flops_of_phase(phase, 2 * multiply_adds, 4 * multiply_adds)


if __name__ == "__main__":
    sys.exit(main("transformer", transformer_workload))
