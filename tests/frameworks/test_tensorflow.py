"""What is special to TensorFlow: XLA, and a GPU that leaves its work to the CPU."""

from contextlib import nullcontext

import pytest

from bench.frameworks.keras_jax_tf import on_tensorflow
from bench.settings import SettingError
from bench.timing import MeasurementError
from tests.conftest import USE_GPU
from tests.frameworks.sessions import Opener, assert_measured

open_session = Opener("tensorflow")
DEVICE = on_tensorflow.choose_device(USE_GPU)


@pytest.mark.skipif(DEVICE == "mps", reason="Metal has no XLA")
@pytest.mark.parametrize(("script", "phase"), [("mlp", "inference"), ("transformer", "training")])
def test_xla_compiles_the_step(script, phase):
    for compiled in (False, True):
        session = open_session(script, phase, COMPILE=str(int(compiled)))
        step = session.model.train_step if phase == "training" else session.model.infer
        assert bool(step._jit_compile) == compiled
        assert_measured(session, 2)


# A TensorFlow that has begun to use its GPU cannot leave it, so this cannot make it so itself.
@pytest.mark.skipif(DEVICE != "cpu", reason="places work on a GPU that is not there")
@pytest.mark.parametrize(
    ("script", "operator", "phase"), [("image", "Conv2DBackprop", "training"), ("mlp", "MatMul", "inference")]
)
def test_a_gpu_that_leaves_its_work_to_the_cpu_is_refused(monkeypatch, script, operator, phase):
    # What is placed on a GPU runs on the CPU, as TensorFlow does if a kernel is missing.
    monkeypatch.setattr(on_tensorflow, "choose_device", lambda use_gpu: "mps")
    with pytest.raises(MeasurementError, match=operator) as caught:
        open_session(script, phase).step()
    assert caught.value.status == "unsupported"


WHEEL = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]


@pytest.mark.parametrize(
    ("capability", "cuda", "built", "words"),
    [
        *(((12, 0), [13, 0], WHEEL, None), ((10, 0), [13, 0], WHEEL, None), ((9, 0), [12, 4], WHEEL, None)),
        *(((9, 0), [12, 5], WHEEL, "half an hour"), ((7, 5), [12, 2], WHEEL, "")),
        ((12, 0), [13, 0], ["sm_90", "sm_120"], ""),  # NVIDIA's
        ((12, 0), [13, 0], ["compute_120"], "half"),  # a user's
        ((9, 0), [0, 0], [], ""),  # unknown
    ],
)
def test_a_card_without_kernels_is_a_line_before_anything_is_built(monkeypatch, capability, cuda, built, words):
    build = {"cuda_compute_capabilities": built, "cuda_version": "12.5.1"}
    monkeypatch.setattr(on_tensorflow.tf.sysconfig, "get_build_info", lambda: build)
    monkeypatch.setattr(on_tensorflow, "read_driver_cuda", lambda: cuda)
    with nullcontext() if words is not None else pytest.raises(SettingError, match="torch or jax"):
        assert words in on_tensorflow.explain_new_card(capability)
