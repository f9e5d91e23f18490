"""Bugs that a benchmark may have, each a few changed lines: {name: Bug}."""

from dataclasses import dataclass

MEASURE, INTERVALS, CHECK = "bench/timing/measure.py", "bench/timing/intervals.py", "bench/timing/check.py"
SESSION, TORCH, RUN = "bench/frameworks/session.py", "bench/frameworks/on_torch.py", "bench/run.py"
BASE = "bench/frameworks/base.py"
TIMING = ("tests/timing/test_measure.py",)
CHECKS = ("tests/timing/test_check.py",)
OPERATORS = ("tests/workloads/test_operators.py",)
STEPS = ("tests/frameworks/test_steps.py",)
LOSS = ("tests/frameworks/test_contract.py::test_its_loss_is_the_one_of_the_record",)
VERDICT, RATES = "bench/records/verdict.py", ("tests/records/test_rates.py",)
ROWS = ("tests/test_run.py",)
LLM, TORCH_LLM, WORKLOAD = "llm_benchmark.py", "bench/frameworks/on_torch_llm.py", "bench/workloads/workload.py"
TRAINS = ("tests/frameworks/test_llm.py",)
ADAPTERS = ("tests/frameworks/test_torch_llm.py::test_an_adapter_adds_its_product_to_the_frozen_weights",)
WRONG = ("tests/frameworks/test_contract.py",)
ALIAS = ("tests/frameworks/test_alias.py::test_a_device_that_corrupts_a_weight_gives_a_wrong_output",)


@dataclass(frozen=True)
class Bug:
    """One replacement in one file, and the tests that should fail because of it."""

    file: str
    before: str  # occurs exactly once
    after: str
    tests: tuple[str, ...]


WINDOW = """    start = clock()
    for _ in range(steps):
        session.step()
    session.synchronize()
    session.read()
    return clock() - start
"""

INFER = "        self.last_result = self.model.infer(*self.inputs)\n"

BUGS = {
    # Several processes
    "intervals_that_shrink": Bug(VERDICT, "is None else rate.low for", "is None else rate.throughput for", RATES),
    "the_fastest_process": Bug(VERDICT, "statistics.median(rate.throughput for", "max(rate.throughput for", RATES),
    "a_constant_output_varies": Bug(
        MEASURE, "return pace, before is not None and value != before", "return pace, True", TIMING
    ),
    # A window
    "skip_a_step": Bug(MEASURE, WINDOW, WINDOW.replace("range(steps)", "range(max(1, steps - 1))"), TIMING),
    "run_a_step_too_many": Bug(MEASURE, WINDOW, WINDOW.replace("range(steps)", "range(steps + 1)"), TIMING),
    "never_wait": Bug(MEASURE, WINDOW, WINDOW.replace("    session.synchronize()\n    session.read()\n", ""), TIMING),
    "no_read": Bug(MEASURE, WINDOW, WINDOW.replace("    session.read()\n", ""), TIMING),
    "read_after_the_clock": Bug(
        MEASURE,
        WINDOW,
        WINDOW.replace(
            "    session.read()\n    return clock() - start",
            "    end = clock()\n    session.read()\n    return end - start",
        ),
        TIMING,
    ),
    "synchronise_before_the_last_step": Bug(
        MEASURE,
        WINDOW,
        """    start = clock()
    for _ in range(steps - 1):
        session.step()
    session.synchronize()
    session.read()
    session.step()
    return clock() - start
""",
        TIMING,
    ),
    "synchronise_every_step": Bug(
        MEASURE,
        WINDOW,
        WINDOW.replace("        session.step()\n", "        session.step()\n        session.synchronize()\n"),
        TIMING,
    ),
    "cpu_seconds": Bug(
        MEASURE, "Callable[[], float] = time.perf_counter", "Callable[[], float] = time.process_time", TIMING
    ),
    "time_what_comes_before_a_part": Bug(
        MEASURE,
        "    if session.prepare:\n        session.prepare()\n        session.synchronize()\n    start = clock()\n",
        "    start = clock()\n    if session.prepare:\n        session.prepare()\n        session.synchronize()\n",
        TIMING,
    ),
    "garbage_collector_on": Bug(MEASURE, "    gc.disable()\n", "", TIMING),
    "garbage_collector_stays_off": Bug(
        MEASURE, "        if was_enabled:\n            gc.enable()", "        pass", TIMING
    ),
    # A series of windows
    "drop_the_slowest_window": Bug(
        MEASURE,
        "    windows, steps = series.windows, series.steps\n",
        "    windows, steps = sorted(series.windows)[:-1], series.steps\n",
        TIMING,
    ),
    "report_the_fastest_window": Bug(
        MEASURE,
        "    middle = statistics.median(windows)\n    in_window",
        "    middle = min(windows)\n    in_window",
        TIMING,
    ),
    "count_a_step_twice": Bug(
        MEASURE, "in_window = job.items_per_step * steps", "in_window = job.items_per_step * (steps + 1)", TIMING
    ),
    "first_step_in_a_window": Bug(
        MEASURE,
        "    series = run(job, ready.steps)\n",
        "    series = run(job, ready.steps)\n    series.windows[0] += ready.first_step_seconds\n",
        TIMING,
    ),
    "no_warm_up": Bug(MEASURE, "MIN_WARMUP_SECONDS and is_steady(paces)", "0", TIMING),
    "gaps_in_a_pipeline": Bug(MEASURE, "now - last if streams else seconds", "seconds", TIMING),
    "give_a_full_queue_away": Bug(MEASURE, "max(2 * session.queue_steps, MIN_WARMUP_STEPS)", "1", TIMING),
    "stop_at_a_lucky_moment": Bug(MEASURE, "next_look = math.ceil(next_look * 1.1)", "next_look = 2", TIMING),
    "energy_of_unfinished_work": Bug(
        MEASURE,
        "        job.session.synchronize()\n        job.session.read()\n        start, before",
        "        start, before",
        TIMING,
    ),
    "narrow_interval": Bug(INTERVALS, "2**n // 40", "2**n // 6", ("tests/timing/test_intervals.py",)),
    "forget_autocorrelation": Bug(
        INTERVALS, "    rho = sign_autocorrelation(samples)\n", "    rho = 0\n", ("tests/timing/test_intervals.py",)
    ),
    "divide_by_the_wrong_batch_size": Bug(
        RUN, "items_per_step = workload.items_per_step * (", "items_per_step = 2 * workload.items_per_step * (", ROWS
    ),
    "read_after_ctrl_c": Bug(MEASURE, 'if series.stop_reason != "interrupted":  # by', "if True:  # by", TIMING),
    # The checks
    "never_compare_single_steps": Bug(MEASURE, "    if steps == 1:\n        return\n", "    return\n", TIMING),
    "never_read_all_outputs": Bug(MEASURE, "math.inf if session.has_outputs() else 0.0", "0.0", TIMING),
    "compare_too_few_steps": Bug(MEASURE, "COMPARED_STEPS = 16", "COMPARED_STEPS = 1", TIMING),
    "accept_a_constant_output": Bug(
        MEASURE, "        if values[-1] != values[0]:\n            return\n", "        return\n", TIMING
    ),
    "ignore_the_optimizers_count": Bug(
        MEASURE, "    if before is not None and (done", "    if False and (done", TIMING
    ),
    "accept_weights_that_do_not_move": Bug(
        MEASURE, "ready.weights is not None and session.checksum() == ready.weights", "False", TIMING
    ),
    "ignore_recompiling": Bug(
        MEASURE,
        'return flags + ([] if job.session.trace_count() == traces else ["recompiled"])',
        "return flags",
        TIMING,
    ),
    "tf32_as_float32": Bug(CHECK, '(5e-5, "float32"), (1e-3, "tf32")', '(1e-3, "float32"), (1e-3, "tf32")', CHECKS),
    "accept_a_wrong_output": Bug(BASE, "check.require(error <= self.output_limit, ", "check.require(True, ", WRONG),
    "accept_an_ignored_input": Bug(BASE, "check.require(not np.array_equal(*got[0]), ", "check.require(True, ", WRONG),
    "accept_float16_as_float32": Bug(BASE, "PROBE_SCALE = 2.0**16", "PROBE_SCALE = 1.0", WRONG),
    "compare_nothing_on_a_gpu": Bug(BASE, 'compares and (device != "cpu" or has_short_numbers)', "False", ALIAS),
    "wide_limits": Bug(CHECK, "MAX_RELATIVE_ERROR if is_exact else MAX_ROUGH_ERROR", "MAX_ROUGH_ERROR * 10", CHECKS),
    "accept_another_last_output": Bug(CHECK, "    if np.isfinite(timed).all():", "    if False:", CHECKS),
    "accept_a_wrong_integer": Bug(
        CHECK, "require(np.array_equal(got, expected), ", "require(np.allclose(got, expected, 0.1, 9), ", OPERATORS
    ),
    "a_wide_limit_for_8_bits": Bug(CHECK, "(EIGHT_BITS, 2e-3)", "(EIGHT_BITS, 2e-2)", OPERATORS),
    "attention_that_sees_the_future": Bug(TORCH, "is_causal=True", "is_causal=False", OPERATORS),
    "count_both_halves_of_attention": Bug(
        "bench/workloads/operators.py", "3, 2 * heads * tokens**2", "3, 4 * heads * tokens**2", OPERATORS
    ),
    "weights_that_stay_in_the_cache": Bug("bench/workloads/operators.py", "smallest=number", "smallest=4", OPERATORS),
    "accept_another_model": Bug(CHECK, "if expected is not None and counted != expected", "if False", CHECKS),
    # A step
    "reuse_the_first_output": Bug(SESSION, INFER, f"        if not hasattr(self, 'last_result'):\n    {INFER}", STEPS),
    "evaluate_only_what_is_read": Bug(
        SESSION, INFER, "\n    last_result = property(lambda self: self.model.infer(*self.inputs))\n", STEPS
    ),
    "always_the_same_batch": Bug(
        SESSION, "settings.batch_size, context.seed)\n", "settings.batch_size, context.seed)[:1]\n", STEPS
    ),
    "half_a_batch": Bug(
        SESSION,
        "self.model.infer(*self.inputs)\n\n    def check",
        "self.model.infer(*(each[: len(each) // 2] for each in self.inputs))\n\n    def check",
        STEPS,
    ),
    "skip_the_optimizer": Bug(
        BASE, "        self.backward()\n        self.update()\n", "        self.backward()\n", STEPS
    ),
    "skip_the_backward_pass_in_every_second_step": Bug(
        BASE,
        "        self.backward()\n        self.update()\n",
        "        if self.updates() % 2:\n            self.backward()\n        self.update()\n",
        STEPS,
    ),
    "train_with_another_loss": Bug(
        TORCH, "self._loss = self.loss_of(", "self._loss = torch.nn.functional.l1_loss(", LOSS
    ),
    "training_in_evaluation_mode": Bug(
        TORCH, "module.train(is_trained), is_trained", "module.eval(), is_trained", STEPS
    ),
    "inference_with_gradients": Bug(
        TORCH, "    @torch.inference_mode()\n    def infer(self, *inputs):", "    def infer(self, *inputs):", STEPS
    ),
    "leave_out_the_compiled_check": Bug(
        SESSION, "if self.context.compile and self.trace_count() == 0:", "if False:", STEPS
    ),
    "leave_out_the_last_check": Bug(
        RUN, "        session.check_last_step()\n    return columns", "        pass\n    return columns", ROWS
    ),
    # Training of language models
    "targets_not_shifted": Bug(LLM, "np.ascontiguousarray(ids[:, 1:])", "np.ascontiguousarray(ids[:, :-1])", TRAINS),
    "no_gradients_are_compared": Bug(
        TORCH,
        "found += torch.autograd.grad(base.LOSS_SCALE * loss, last_matrix(module))",
        "pass",
        ("tests/frameworks/test_contract.py::test_a_device_that_computes_something_else_is_refused",),
    ),
    "train_the_frozen_weights": Bug(TORCH_LLM, "requires_grad_(not sizes.lora_rank)", "requires_grad_(True)", TRAINS),
    "leave_out_a_projection": Bug(WORKLOAD, '"v_proj", "o_proj")  # that', '"o_proj")  # that', TRAINS),
    "leave_out_the_scale_of_lora": Bug(TORCH_LLM, "LORA_SCALE * adapter", "adapter", ADAPTERS),
    "merge_adapters_into_the_weights": Bug(
        TORCH_LLM,
        "        return self.projection(x) + LORA_SCALE * adapter",
        "        with torch.no_grad():\n            self.projection.weight += 1e-6 * self.b @ self.a\n"
        "        return self.projection(x) + LORA_SCALE * adapter",
        TRAINS,
    ),
    "count_gradients_of_frozen_weights": Bug(
        LLM,
        "backward = 2 * (forward - frozen) + frozen + ",
        "backward = 2 * forward + ",
        ("tests/workloads/test_language.py", "tests/frameworks/test_torch_llm.py"),
    ),
}
