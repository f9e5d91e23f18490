"""Sequences per second through a BERT-like encoder with a classifier, in training or inference.

    make transformer
    MODEL=bert-base BATCH_SIZE=8 SEQUENCE_LENGTH=512 make transformer
    FRAMEWORK=tensorflow PHASE=inference .venv-tensorflow/bin/python transformer_benchmark.py

`make help` lists the settings.
"""

import functools
import sys

from bench.launch import main
from bench.settings import SettingError
from bench.workloads import data
from bench.workloads.workload import ENCODERS, Workload, encoder_counts


def transformer_workload(settings):
    """One step is one batch of sequences of random tokens, sorted into eight classes."""
    if settings.model not in ENCODERS:
        raise SettingError(f"MODEL={settings.model!r} must be one of: {', '.join(ENCODERS)}")
    encoder, length = ENCODERS[settings.model], settings.sequence_length
    parameters, flops = encoder_counts(encoder, length, settings.phase)
    return Workload(
        name="transformer",
        model=settings.model,
        unit="sequences",
        items_per_step=settings.batch_size,
        item_shape=(length,),
        classes=encoder.labels,
        parameters=parameters,
        flops_per_item=flops,
        batches=functools.partial(data.token_batches, length, encoder.vocab_size, encoder.labels),
        columns={"sequence_length": length, "data": "synthetic"},
    )


if __name__ == "__main__":
    sys.exit(main("transformer", transformer_workload))
