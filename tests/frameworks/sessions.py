"""Opens sessions of one framework for the tests: small models and few steps."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from bench import check, frameworks
from bench.precision import relative_error
from bench.settings import read_settings
from bench.timing.windows import Timer
from bench.workloads.workload import LEARNING_RATES
from diffusion_benchmark import DENOISERS
from tests.conftest import GIVEN, TESTED
from tests.fakes import Clock, workload_of_command
from tests.frameworks.torch_reference import TINY
from transformer_benchmark import ENCODERS

SMALL = {
    "image": {"MODEL": "resnet18", "IMAGE_SIZE": "32", "BATCH_SIZE": "2"},
    "mlp": {"MODEL": "mlp-16", "DATA": "synthetic", "BATCH_SIZE": "8"},
    "transformer": {"MODEL": "tiny-bert", "SEQUENCE_LENGTH": "8", "BATCH_SIZE": "2"},
    "llm": {"MODEL": "tiny-llama", "PRECISION": "float32", "BATCH_SIZE": "2", "PROMPT_TOKENS": "6"},
}
SMALL["llm"] |= {"DEPTH": "3", "NEW_TOKENS": "4"}
SMALL["diffusion"] = {"MODEL": "tiny-ddpm", "PRECISION": "float32", "BATCH_SIZE": "2"}
# Three classes of denoisers, as small as they can be: for images of 8 or 64 pixels a side.
BLOCKS = {"block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4}
DDPM = BLOCKS | {"in_channels": 3, "attention_head_dim": 4}
DDPM |= {"down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]}
SDXL = BLOCKS | {"in_channels": 4, "attention_head_dim": 2, "cross_attention_dim": 12}
SDXL |= {"down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"]}
SDXL |= {"up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "addition_embed_type": "text_time"}
SDXL |= {"addition_time_embed_dim": 4, "projection_class_embeddings_input_dim": 34}  # 6 numbers of 4 each, and 10
FLUX = {"in_channels": 8, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2}
FLUX |= {"joint_attention_dim": 12, "timestep_guidance_channels": 16, "axes_dims_rope": [2, 2, 2, 2]}
FLUX |= {"guidance_embeds": False}
PROMPT = {"encoder_hidden_states": [5, 12]}


def shrink(name, config, image_size, parameters, **conditions):
    """Return a small Denoiser of the class of a published one."""
    sizes = {"image_size": image_size, "parameters": parameters, "conditions": conditions}
    return replace(DENOISERS[name], config=config, **sizes)


TINY_DENOISERS = {
    "tiny-ddpm": shrink("ddpm-cifar10", DDPM, 8, 18_811),
    "tiny-sdxl": shrink("sdxl", SDXL, 64, 26_476, **PROMPT, text_embeds=[10], time_ids=[6]),
    "tiny-flux": shrink("flux.2-klein-4b", FLUX, 64, 15_344, **PROMPT),
}
ENCODERS.update(TINY)
DENOISERS.update(TINY_DENOISERS)


class Opener:
    """Opens sessions of one framework."""

    def __init__(self, name):
        self.name, self.framework = name, frameworks.load(name)

    def settings(self, script, **environ):
        environ = GIVEN | {"FRAMEWORK": self.name} | SMALL.get(script, {}) | environ
        return read_settings(script, environ, self.framework.find_device(read_settings(script, environ)).type)

    def __call__(self, script="mlp", phase="training", scope="device", **environ):
        settings = self.settings(script, PHASE=phase, **environ)
        return self.framework.open_session(workload_of_command(script, settings), settings, scope)

    def operator(self, workload, precision="float32", **environ):
        """The session of one operator."""
        settings = replace(self.settings("tflops", **environ), precision=precision)
        return self.framework.open_session(workload, settings, "device")


def measure_and_check(session, items=2):
    """Measure a session for a moment, and check its result as a child does; returns the cells.

    Each step takes 0.1 s of its clock: no result depends on the speed of the machine.
    """
    clock, step = Clock(), session.step

    def count_step():
        clock.sleep(0.1)
        step()

    session.step = count_step
    measured = Timer(session, items, max_seconds=0.1, clock=clock).measure()
    if kept := session.check_last_output():
        session.output_error = check.check_output(session, *kept)
    return measured


def assert_measured(session, items):
    """Measure a session for a moment; its steps are compiled once, finite, and right."""
    measured = measure_and_check(session, items)
    assert not {"recompiled", "not_finite"} & set(measured["flags"].split())
    if session.parameters and "not compared" not in str(session.notes):  # it is no operator
        assert session.output_error is not None
    if session.context.compile and session.first_loss is None:  # nothing is compiled for the check of inference
        assert session.trace_count() == 1


open_llm = functools.partial(Opener(TESTED), "llm")  # of tiny language models: (phase, **environ) -> a session


def assert_same_work(name, session, torch, expected, stop_dropout):
    """Compare a session of a named model, which has PyTorch's weights, with PyTorch: output, gradients, losses.

    Args:
        torch: what torch_reference.py wrote for the model.
        expected: the gradients of PyTorch in the session's layout.
        stop_dropout: () -> None
    """
    model, (inputs, labels) = session.model, session.context.put(torch["_inputs"], torch["_labels"])
    assert np.array_equal(next(session.batches)[0][0], inputs)  # the same seed gives the same data
    # Rounding: 4e-5 in ResNet-50, below 1e-5 in the others, of whose GELU an approximation would be wrong by 3e-4.
    assert relative_error(model.output(inputs), torch["_logits"]) < (1e-3 if name == "resnet50" else 1e-4)
    stop_dropout()  # it draws other numbers
    losses, weights = [], []
    for _ in range({"resnet18": 2, "resnet50": 1}.get(name, 3)):
        weights.append([np.array(each) for each in model.trained_weights().values()])
        model.train(inputs, labels)
        losses.append(float(model.loss))
    weights.append([np.array(each) for each in model.trained_weights().values()])
    # The optimizer is SGD without momentum.
    got = [(before - after) / LEARNING_RATES["sgd"] for before, after in zip(*weights[:2], strict=True)]
    # Some gradients, such as those of the key biases in attention, are zero except for rounding.
    smallest = 0.01 * np.linalg.norm([np.linalg.norm(each) for each in expected])
    errors = [np.linalg.norm(a - b) / max(np.linalg.norm(b), smallest) for a, b in zip(got, expected, strict=True)]
    # ReLUs that flip, and differences of weights, are wrong by up to 2 %. Normalisations make further steps diverge.
    assert max(errors) < 0.1
    assert losses[0] == pytest.approx(torch["_losses"][0], rel=1e-4)
    assert losses == pytest.approx(torch["_losses"][: len(losses)].tolist(), rel=0.02)  # steps magnify differences
    assert losses == sorted(losses, reverse=True)
