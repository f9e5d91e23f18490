"""How to use the fastest settings in one's own script: one table, setting -> lines of code, for each framework."""

BEFORE_MODEL = "  # before the model is built"
POLICY = 'keras.config.set_dtype_policy("{value}")' + BEFORE_MODEL
JIT_COMPILE = "model.compile(jit_compile=True)  # in training also optimizer=... and loss=..., as before"
TORCH_DTYPE = "model = model.to(torch.{value})  # and inputs, unless they are integers"
AUTOCAST = 'with torch.autocast("{device}", torch.{dtype}):\n    outputs = model(inputs)  # and the loss'
SCALER = (
    'scaler = torch.amp.GradScaler("{device}")\n'
    "# in training: scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()\n"
)
KERAS = {"PRECISION": POLICY, "COMPILE=1": JIT_COMPILE}
# A name without a value stands for all values that have no line of their own. The lines are in the order in which a
# script needs them, and use the names that most scripts have: model, inputs, loss, optimizer.
LINES = {
    "torch": {
        "NUM_THREADS": "torch.set_num_threads({value})",
        "DEVICE=cuda": "torch.backends.cudnn.benchmark = True",
        "PRECISION=tf32": 'torch.backends.fp32_precision = "tf32"',
        "PRECISION=bfloat16": TORCH_DTYPE,
        "PRECISION=float16": TORCH_DTYPE,
        "MEMORY_FORMAT=channels_last": "model = model.to(memory_format=torch.channels_last)  # and inputs",
        "COMPILE=0": "",
        "COMPILE=1": "model.compile()",
        "COMPILE": 'model.compile(mode="{value}")',
        "PRECISION=mixed_bfloat16": AUTOCAST,
        "PRECISION=mixed_float16": SCALER + AUTOCAST,
    },
    "tensorflow": {
        "NUM_THREADS": "tf.config.threading.set_intra_op_parallelism_threads({value})" + BEFORE_MODEL,
        "PRECISION=tf32": "tf.config.experimental.enable_tensor_float_32_execution(True)",
        **KERAS,
    },
    "jax": {
        "NUM_THREADS": 'os.environ["NPROC"] = "{value}"  # before JAX is imported',
        "PRECISION=tf32": 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")',
        **KERAS,
    },
    "mlx": {
        "PRECISION=tf32": 'os.environ["MLX_ENABLE_TF32"] = "1"  # before MLX computes anything',
        "PRECISION": "model.set_dtype(mx.{value})  # and inputs, unless they are integers",
        "COMPILE=1": "# inference: compiled = mx.compile(model, inputs=model.state)\n"
        "state = [model.state, optimizer.state, mx.random.state]\n"
        "step = mx.compile(step, inputs=state, outputs=state)",
    },
}


def lines_of_code(framework, settings):
    """Return the lines of the user's own script for settings, {name: value}, with DEVICE."""
    table = LINES[framework]
    lines = []
    chosen = {key if (key := f"{name}={value}") in table else name: value for name, value in settings.items()}
    for key, text in table.items():
        if key in chosen and text:
            value = chosen[key]
            dtype = value.removeprefix("mixed_")
            lines += text.format(value=value, device=settings["DEVICE"], dtype=dtype).split("\n")
    return lines
