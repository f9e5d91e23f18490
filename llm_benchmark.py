"""Tokens per second of a language model: prefill (reading a prompt) and decode (writing token by token).

    make llm
    MODEL=llama-3.2-1b PHASE=decode DEPTH=0,4096 BATCH_SIZE=1,8 make llm
    PHASE=prefill PROMPT_TOKENS=128,512,2048 .venv/bin/python llm_benchmark.py

The definitions are those of llama-bench (pp512, tg128); docs/method-details.md has them. `make settings`
explains the settings.
"""

import functools
import sys

from bench.launch import main
from bench.settings import SettingError
from bench.workloads import data, language
from bench.workloads.workload import Workload


def llm_workload(settings):
    """Describe the work: a step of prefill reads a batch of random prompts, one of decode adds a token to each."""
    decoder = check(settings)
    is_prefill, size = settings.phase == "prefill", settings.batch_size
    before, new = (0, settings.prompt_tokens) if is_prefill else (settings.depth, settings.new_tokens)
    flops = language.prefill_flops(decoder, new) // new if is_prefill else language.decode_flops(decoder, before, new)
    read = None if is_prefill else language.decode_bytes(decoder, size, before, new, settings.precision)
    cache = size * language.cache_bytes(decoder, before + new, settings.precision)
    return Workload(
        name="llm",
        model=settings.model,
        unit="tokens",
        items_per_step=size * new if is_prefill else size,
        item_shape=(),
        classes=decoder.vocab_size,
        parameters=language.count_parameters(decoder),
        flops_per_item=flops,
        batches=functools.partial(data.token_batches, before + new, decoder.vocab_size, 1),
        columns={"data": "synthetic"},
        bytes_per_step=read,
        resident_bytes=language.weight_bytes(decoder, settings.precision) + cache,
    )


def check(settings):
    """Return the Decoder of the settings; raises SettingError if it is unknown or its positions do not suffice."""
    if settings.model not in language.DECODERS:
        raise SettingError(f"MODEL={settings.model!r} must be one of: {', '.join(language.DECODERS)}")
    decoder = language.DECODERS[settings.model]
    if settings.phase == "prefill":
        tokens, asked = settings.prompt_tokens, f"PROMPT_TOKENS='{settings.prompt_tokens}'"
    else:
        tokens = settings.depth + settings.new_tokens
        asked = f"DEPTH='{settings.depth}' and NEW_TOKENS='{settings.new_tokens}'"
    if tokens > decoder.max_position_embeddings:
        most = decoder.max_position_embeddings
        raise SettingError(f"{asked} need {tokens} positions, and {settings.model} has {most}: set fewer")
    return decoder


if __name__ == "__main__":
    sys.exit(main("llm", llm_workload))
