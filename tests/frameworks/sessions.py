"""Opens sessions of one framework for the tests: small models and few steps."""

from dataclasses import replace

from bench import frameworks
from bench.settings import read_settings
from diffusion_benchmark import DENOISERS, diffusion_workload
from image_benchmark import image_workload
from llm_benchmark import llm_workload
from mlp_benchmark import mlp_workload
from tests.conftest import TESTED
from tests.frameworks.tiny_denoisers import TINY_DENOISERS
from tests.frameworks.torch_reference import TINY
from transformer_benchmark import ENCODERS, transformer_workload

SCRIPTS = {"image": image_workload, "mlp": mlp_workload, "transformer": transformer_workload}
OTHERS = {"llm": llm_workload, "diffusion": diffusion_workload}  # that some frameworks lack
SMALL = {
    "image": {"MODEL": "resnet18", "IMAGE_SIZE": "32", "BATCH_SIZE": "2"},
    "mlp": {"MODEL": "mlp-16", "DATA": "synthetic", "BATCH_SIZE": "8"},
    "transformer": {"MODEL": "tiny-bert", "SEQUENCE_LENGTH": "8", "BATCH_SIZE": "2"},
    "llm": {"MODEL": "tiny-llama", "PRECISION": "float32", "BATCH_SIZE": "2", "PROMPT_TOKENS": "6"},
}
SMALL["llm"] |= {"DEPTH": "3", "NEW_TOKENS": "4"}
SMALL["diffusion"] = {"MODEL": "tiny-ddpm", "PRECISION": "float32", "BATCH_SIZE": "2"}
ENCODERS.update(TINY)
DENOISERS.update(TINY_DENOISERS)


class Opener:
    """Opens sessions of one framework."""

    def __init__(self, name):
        self.name, self.framework = name, frameworks.load(name)

    def settings(self, script, **environ):
        known = "torch" if self.name == "numpy" else self.name  # the setting has only real frameworks
        settings = read_settings(script, {"FRAMEWORK": known} | SMALL.get(script, {}) | environ)
        settings = replace(settings, framework=self.name)
        return settings.on(self.framework.find_device(settings).device)

    def workload(self, script, phase, **environ):
        describe = (SCRIPTS | OTHERS)[script]
        return describe(replace(self.settings(script, **environ), phase=phase))

    def __call__(self, script="mlp", phase="training", scope="device", **environ):
        workload, settings = self.workload(script, phase, **environ), self.settings(script, **environ)
        return self.framework.open_session(workload, settings, phase, scope)

    def operator(self, workload, precision="float32"):
        """The session of one operator."""
        settings = replace(self.settings("tflops"), precision=precision)
        return self.framework.open_session(workload, settings, None, "device")


def open_llm(phase="decode", **environ):
    """Open a session of a tiny language model."""
    return Opener(TESTED)("llm", phase, PHASE=setting_of(phase), **environ)


def describe_llm(phase="decode", **environ):
    """Return the Workload of open_llm()."""
    return Opener(TESTED).workload("llm", phase, PHASE=setting_of(phase), **environ)


def setting_of(phase):
    """Return the PHASE that has a phase: parts of training are measured with it."""
    return phase if phase in ("prefill", "decode") else "training"
