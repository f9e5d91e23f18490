"""What a user does with the fastest settings: the line of make that repeats them, and the lines of one's own script.

The lines of a script use the names that most scripts have: model, inputs, labels, loss_function, optimizer.
"""

import shlex

from bench.machine.environment import SETUP_VARIABLES

DTYPES = {"float16": "float16", "bfloat16": "bfloat16", "float64": "float64"}
AUTOCAST = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


def line_of_make(target, given, change):
    """One line that repeats a candidate: {variable: text} of what the user gave, then of the candidate."""
    words = [f"{name}={shlex.quote(text)}" for name, text in (given | change).items()]
    return " ".join([*words, "make", target])


def environment_lines(change):
    """What a shell needs before Python starts; [] where nothing."""
    return [f"export {name}={shlex.quote(change[name])}" for name in SETUP_VARIABLES if name in change]


def script_lines(framework, settings, device, num_threads):
    """Lines of Python for one's own script.

    Args:
        settings: Settings of the candidate.
        num_threads: None leaves the framework's own.
    """
    return {"torch": torch_lines, "tensorflow": keras_lines}[framework](settings, device, num_threads)


def torch_lines(settings, device, num_threads):
    """Lines of PyTorch. `model`, `inputs`, `labels`, `loss_function` and `optimizer` are the user's own."""
    dtype, to = DTYPES.get(settings.precision), [repr(device)]
    to += [f"torch.{dtype}"] if dtype else []
    to += ["memory_format=torch.channels_last"] if settings.memory_format == "channels_last" else []
    tf32 = 'torch.backends.fp32_precision = "tf32"' if settings.precision == "tf32" else ""
    mode = "" if settings.compile == "1" else f", mode={settings.compile!r}"
    is_tokens = settings.sequence_length is not None  # whole numbers keep their type
    lines = [
        "import torch",
        f"torch.set_num_threads({num_threads})" if num_threads else "",
        tf32,
        "torch.backends.cudnn.benchmark = True" if device == "cuda" else "",
        f"model = model.to({', '.join(to)})",
        f"model = torch.compile(model{mode})" if settings.compile != "0" else "",
        f"inputs = inputs.to({repr(device) if is_tokens else ', '.join(to)})",
    ]
    cast = AUTOCAST.get(settings.precision)
    cast = f'torch.autocast("{device}", torch.{cast})' if cast else ""
    return list(filter(None, lines)) + (
        torch_inference(cast) if settings.phase == "inference" else torch_training(cast, device)
    )


def torch_inference(cast):
    return [
        "model.eval()",
        f"with {', '.join(filter(None, ['torch.inference_mode()', cast]))}:",
        "    outputs = model(inputs)",
    ]


def torch_training(cast, device):
    """One step; float16 needs a scaler, or small gradients become zero."""
    scaled = "float16" in cast and "bfloat16" not in cast
    loss = "loss = loss_function(model(inputs), labels)"
    return [
        "model.train()",
        *([f'scaler = torch.amp.GradScaler("{device}")'] if scaled else []),
        f'labels = labels.to("{device}")',
        "optimizer.zero_grad(set_to_none=True)",
        *([f"with {cast}:", f"    {loss}"] if cast else [loss]),
        *(["scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"] if scaled else []),
        *([] if scaled else ["loss.backward()", "optimizer.step()"]),
    ]


def keras_lines(settings, device, num_threads):
    """Before the model is built, all but the last."""
    policy = "float32" if settings.precision == "tf32" else settings.precision
    own = "optimizer=optimizer, loss=loss_function, " if settings.phase == "training" else ""
    tf32 = f"tf.config.experimental.enable_tensor_float_32_execution({settings.precision == 'tf32'})"
    lines = [
        "import keras",
        "import tensorflow as tf",
        f"tf.config.threading.set_intra_op_parallelism_threads({num_threads})" if num_threads else "",
        tf32 if device == "cuda" else "",
        f'keras.config.set_dtype_policy("{policy}")  # before the model is built',
        f"model.compile({own}jit_compile={settings.compile == '1'})  # then model.{'fit' if own else 'predict'}(...)",
    ]
    return list(filter(None, lines))
