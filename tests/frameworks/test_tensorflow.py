"""What is special to TensorFlow: XLA, and a GPU that leaves its work to the CPU."""

from contextlib import nullcontext

import pytest

from bench.frameworks.keras_jax_tf import on_tensorflow
from bench.host.environment import NvidiaGpu
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
    ("capability", "driver", "built", "words"),
    [
        *(((12, 0), "580.65.06", WHEEL, None), ((10, 0), "580.65.06", WHEEL, None), ((9, 0), "550.90", WHEEL, None)),
        *(((9, 0), "555.42", WHEEL, "half an hour"), ((7, 5), "535.183", WHEEL, "")),
        *(((12, 0), "580.65.06", ["sm_90", "sm_120"], ""), ((12, 0), "580.65.06", [], "")),  # NVIDIA's, and unknown
    ],
)
def test_a_card_without_kernels_is_a_line_before_anything_is_built(monkeypatch, capability, driver, built, words):
    monkeypatch.setattr(on_tensorflow.tf.sysconfig, "get_build_info", lambda: {"cuda_compute_capabilities": built})
    monkeypatch.setattr(on_tensorflow.environment, "list_cards", lambda: [NvidiaGpu("NVIDIA", driver=driver)])
    with nullcontext() if words is not None else pytest.raises(SettingError, match="torch or jax"):
        assert words in on_tensorflow.explain_new_card(capability)
