"""How to use the fastest settings: the command that repeats them, and the lines of one's own script.

The lines of a script use the names that most scripts have: model, inputs, labels, loss_function, optimizer.
"""

import shlex

from bench.settings import known_names

WIDTH = 76  # of a terminal of 80 columns, less the indentation


def lines_of_make(target, given):
    """Return the command that repeats a candidate, in lines that fit a terminal: {variable: text} of what to set."""
    lines = [""]
    for word in [*(f"{name}={shlex.quote(text)}" for name, text in given.items()), f"make {target}"]:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH - len(" \\"):
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def environment_lines(change):
    """Return the lines that a shell needs before Python starts: the variables that are not settings of this program."""
    return [f"export {name}={shlex.quote(text)}" for name, text in change.items() if name not in known_names()]


def script_lines(settings, device, num_threads):
    """Return the lines of the user's own script; num_threads is None for the framework's own number."""
    return list(filter(None, SCRIPTS[settings.framework](settings, device, num_threads)))


def torch_lines(settings, device, num_threads):
    """Return lines of PyTorch."""
    to = [repr(device)]
    to += [f"torch.{settings.precision}"] if settings.precision in ("float16", "bfloat16", "float64") else []
    to += ["memory_format=torch.channels_last"] if settings.memory_format == "channels_last" else []
    is_tokens = settings.prompt_tokens or settings.sequence_length  # integers keep their type
    mode = "" if settings.compile == "1" else f", mode={settings.compile!r}"
    # generate() of transformers calls the method, and would pass by a compiled wrapper of the model.
    compiled = (
        "model.forward = torch.compile(model.forward" if settings.prompt_tokens else "model = torch.compile(model"
    )
    _, is_mixed, dtype = settings.precision.rpartition("mixed_")
    cast = f'torch.autocast("{device}", torch.{dtype})' if is_mixed else ""
    lines = [
        "import torch",
        f"torch.set_num_threads({num_threads})" if num_threads else "",
        'torch.backends.fp32_precision = "tf32"' if settings.precision == "tf32" else "",
        "torch.backends.cudnn.benchmark = True" if device == "cuda" else "",
        f"model = model.to({', '.join(to)})",
        f"{compiled}{mode})" if settings.compile != "0" else "",
        f"inputs = inputs.to({repr(device) if is_tokens else ', '.join(to)})",
    ]
    if settings.phase != "training":
        call = "model.generate(inputs)" if settings.phase == "decode" else "model(inputs)"
        contexts = ", ".join(filter(None, ["torch.inference_mode()", cast]))
        return [*lines, "model.eval()", f"with {contexts}:", f"    outputs = {call}"]
    scaler, update = "", ["loss.backward()", "optimizer.step()"]
    if settings.precision == "mixed_float16":  # without a scaler, small gradients become zero
        scaler = f'scaler = torch.amp.GradScaler("{device}")'
        update = ["scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"]
    loss = "loss = loss_function(model(inputs), labels)"
    return [
        *lines,
        "model.train()",
        scaler,
        f'labels = labels.to("{device}")',
        "optimizer.zero_grad(set_to_none=True)",
        *([f"with {cast}:", f"    {loss}"] if cast else [loss]),
        *update,
    ]


def tensorflow_lines(settings, device, num_threads):
    """Return lines of Keras in TensorFlow."""
    tf32 = f"tf.config.experimental.enable_tensor_float_32_execution({settings.precision == 'tf32'})"
    return [
        "import keras",
        "import tensorflow as tf",
        f"tf.config.threading.set_intra_op_parallelism_threads({num_threads})" if num_threads else "",
        tf32 if device == "cuda" else "",
        *keras_lines(settings),
    ]


def jax_lines(settings, device, num_threads):
    """Return lines of Keras in JAX."""
    precision = "tensorfloat32" if settings.precision == "tf32" else "highest"
    return [
        "import os",
        'os.environ["KERAS_BACKEND"] = "jax"',
        f'os.environ["NPROC"] = "{num_threads}"  # before JAX starts' if num_threads else "",
        "import jax",
        "import keras",
        f'jax.config.update("jax_default_matmul_precision", "{precision}")' if device == "cuda" else "",
        *keras_lines(settings),
    ]


def keras_lines(settings):
    """Return lines of Keras; all but the last one belong before the model is built."""
    policy = "float32" if settings.precision == "tf32" else settings.precision
    own = "optimizer=optimizer, loss=loss_function, " if settings.phase == "training" else ""
    return [
        f'keras.config.set_dtype_policy("{policy}")  # before the model is built',
        f"model.compile({own}jit_compile={settings.compile == '1'})  # then model.{'fit' if own else 'predict'}(...)",
    ]


def mlx_lines(settings, device, _):
    """Return lines of MLX, which cannot set its threads."""
    is_trained, is_compiled = settings.phase == "training", settings.compile != "0"
    is_tokens = settings.prompt_tokens or settings.sequence_length  # integers keep their type
    dtype = settings.precision if settings.precision in ("float16", "bfloat16") else ""
    lines = [
        "import os",
        f'os.environ["MLX_ENABLE_TF32"] = "{int(settings.precision == "tf32")}"  # before MLX computes anything',
        "import mlx.core as mx",
        "from mlx import nn" if is_trained else "",
        "mx.set_default_device(mx.cpu)" if device == "cpu" else "",
        f"model.set_dtype(mx.{dtype})" if dtype else "",
        f"inputs = inputs.astype(mx.{dtype})" if dtype and not is_tokens else "",
    ]
    if not is_trained:
        call = ["outputs = model(inputs)"]
        if is_compiled:
            call = ["compiled = mx.compile(model, inputs=model.state)", "outputs = compiled(inputs)"]
        return [*lines, "model.eval()", *call, "mx.eval(outputs)"]
    return [
        *lines,
        "model.train()",
        "differentiate = nn.value_and_grad(model, lambda inputs, labels: loss_function(model(inputs), labels))",
        "def step(inputs, labels):",
        "    loss, gradients = differentiate(inputs, labels)",
        "    optimizer.update(model, gradients)",
        "    return loss",
        "optimizer.init(model.trainable_parameters())",
        "state = [model.state, optimizer.state, mx.random.state]",
        "step = mx.compile(step, inputs=state, outputs=state)" if is_compiled else "",
        "outputs = step(inputs, labels)",
        "mx.eval(outputs, state)",
    ]


SCRIPTS = {"torch": torch_lines, "tensorflow": tensorflow_lines, "jax": jax_lines, "mlx": mlx_lines}  # by framework
