"""Bugs that a benchmark may have, each a few changed lines: {name: Bug}."""

from dataclasses import dataclass

WINDOWS, INTERVALS = "bench/timing/windows.py", "bench/timing/intervals.py"
CHECK, PRECISION = "bench/check.py", "bench/precision.py"
SESSION, TORCH, CHILD = "bench/frameworks/session.py", "bench/frameworks/pytorch/on_torch.py", "bench/child.py"
MODEL = "bench/frameworks/pytorch/on_torch_model.py"
TIMED = "bench/timing/__init__.py"
TIMING = ("tests/timing/test_windows.py",)
COVERAGE = ("tests/timing/test_intervals.py",)
CHECKS = ("tests/test_check.py",)
ACCIDENTS = ("tests/frameworks/test_accidents.py",)
OPERATORS = ("tests/workloads/test_operators.py",)
STEPS = ("tests/frameworks/test_torch.py::test_a_step_of_training_changes_every_weight",)
LOSS = ("tests/frameworks/test_torch_diffusion.py::test_the_loss_is_the_mean_squared_error_of_the_noise",)
VERDICT, VERDICTS = "bench/records/verdict.py", ("tests/records/test_verdict.py",)
COMBINE, COMBINED = "bench/records/tables.py", ("tests/records/test_tables.py",)
ROWS = ("tests/test_child.py",)
RUN = ("tests/test_run.py",)
BEST, SEARCHED = "best_settings.py", ("tests/test_best.py",)
LLM, TORCH_LLM = "llm_benchmark.py", "bench/frameworks/pytorch/on_torch_llm.py"
ADAPTERS = ("tests/frameworks/test_torch_llm.py",)
IMAGES = "bench/frameworks/pytorch/on_torch_images.py"
WORKERS = ("tests/frameworks/test_torch.py::test_nothing_that_outlives_a_worker_holds_its_pipe",)
DROPPED = ("tests/frameworks/test_torch.py::test_a_worker_that_cannot_send_a_batch_ends",)
TRAINS = ("tests/frameworks/test_llm.py",)
WRONG = ("tests/frameworks/test_contract.py",)
KNOWN = ("tests/frameworks/test_known.py",)
CARD = ("tests/card/test_card.py",)
METERS = "bench/host/meters.py"


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

ITEMS, HALF = (
    "        items_in_window, seconds = ",
    "step_seconds = statistics.median(windows[: (len(windows) + 1) // 2])",
)
RUN_STEP = "        self.last_result = self.run(*arguments)\n"

BUGS = {
    # Several processes
    "intervals_that_shrink": Bug(COMBINE, "low.min()", "low.max()", COMBINED),
    "disturbed_processes_count": Bug(COMBINE, "[is_ok & ~disturbed, is_ok,", "[is_ok, is_ok,", COMBINED),
    "the_fastest_process": Bug(COMBINE, "- 1) // 2\n", "- 1)\n", COMBINED),
    "accept_unequal_weights_of_ranks": Bug(CHILD, "require(not unlike", "require(True", ("tests/test_ranks.py",)),
    "divide_by_the_wrong_batch_size": Bug(
        CHILD, "            workload.items_per_step * group", "            2 * workload.items_per_step * group", ROWS
    ),
    "a_peak_of_lucky_rates": Bug("tflops_sweep.py", "peak = sweep", "peak = best or sweep", ("tests/test_tflops.py",)),
    # make best
    "believe_the_steps": Bug(BEST, "self.final.ratio.low <= 1", "False", SEARCHED),
    # Slices
    "time_the_step_after_a_pause": Bug(
        WINDOWS, "        timed(self.session, self.clock, 1)\n        begun", "        begun", TIMING
    ),
    "the_same_one_first_in_every_round": Bug("bench/run.py", "(runs if number % 2 else runs[::-1])", "runs", RUN),
    "the_same_one_first_in_every_slice": Bug("bench/run.py", "        waiting.reverse()\n", "", RUN),
    "compare_slices_that_are_not_neighbours": Bug(
        VERDICT, "statistics.median(a / b for a, b in slices)", "max(slices)[0] / min(slices)[1]", VERDICTS
    ),
    # A window
    "skip_a_step": Bug(TIMED, WINDOW, WINDOW.replace("range(steps)", "range(max(1, steps - 1))"), TIMING),
    "no_read": Bug(TIMED, WINDOW, WINDOW.replace("    session.read()\n", ""), TIMING),
    "time_what_comes_before_a_part": Bug(
        TIMED,
        "        session.prepare()\n        session.synchronize()\n    start = clock()\n",
        "        pass\n    start = clock()\n    if session.prepare:\n        session.prepare()\n",
        TIMING,
    ),
    "garbage_collector_on": Bug(WINDOWS, "    gc.disable()\n", "", TIMING),
    "energy_of_what_precedes_a_part": Bug(CHILD, " or session.prepare or", " or", ROWS),
    "an_idle_device_between_windows": Bug(WINDOWS, "self.end_seconds() / MAX_END_SHARE", "0", TIMING),
    # A series of windows
    "drop_the_slowest_window": Bug(WINDOWS, ITEMS, f"        windows = sorted(windows)[:-1]\n{ITEMS}", TIMING),
    "median_of_the_first_half": Bug(WINDOWS, "step_seconds = statistics.median(windows)", HALF, TIMING),
    "first_step_in_a_window": Bug(
        WINDOWS, "* steps, sum(windows)\n", "* steps, sum(windows) + self.first_step_seconds\n", TIMING
    ),
    "a_full_queue_is_a_slow_host": Bug(WINDOWS, "LAUNCH_BOUND = 0.95", "LAUNCH_BOUND = 0.75", TIMING),
    "no_warm_up": Bug(WINDOWS, "MIN_WARMUP_SECONDS and is_steady(paces)", "0", TIMING),
    "gaps_in_a_pipeline": Bug(WINDOWS, "            last = now\n", "            last = self.clock()\n", TIMING),
    "stop_at_a_lucky_moment": Bug(WINDOWS, "math.ceil(self.next_look * 1.1)", "2", TIMING),
    "narrow_interval": Bug(INTERVALS, "2**n // 40", "2**n // 6", COVERAGE),
    "forget_autocorrelation": Bug(INTERVALS, "sign_autocorrelation(samples) if rho", "0 if rho", COVERAGE),
    # The checks
    "accept_another_number_of_parameters": Bug(CHECK, "expected in (None, counted)", "True", CHECKS),
    "accept_any_gradient": Bug(CHECK, "low <= ratio <= high", "True", CHECKS),
    "refuse_gradients_that_are_nothing_but_rounding": Bug(CHECK, "(0.9, 1.1, 1e-4)", "(0.9, 1.1, 0)", CHECKS),
    "one_limit_for_all_precisions": Bug(CHECK, "if measured <= EXACT:", "if False:", CHECKS),
    "an_error_next_to_the_norm": Bug(
        CHECK, "np.minimum(np.linalg.norm(expected, axis=1), contrast)", "contrast.max() * 50", CHECKS
    ),
    "accept_a_model_that_was_not_compiled": Bug(
        CHECK, "not context.compile or context", "True or context", ("tests/frameworks/test_torch.py",)
    ),
    "tf32_as_float32": Bug(PRECISION, '(5e-5, "float32"), (1e-3, "tf32")', '(1e-3, "float32"), (1e-3, "tf32")', CHECKS),
    "accept_float16_as_float32": Bug(PRECISION, "PROBE_SCALE = 2.0**16", "PROBE_SCALE = 1.0", WRONG),
    "accept_float32_of_fewer_bits": Bug(
        PRECISION, "        if precision not in (EXACT", "        if () in (EXACT", WRONG
    ),
    "look_at_the_precision_before_the_first_step": Bug(
        SESSION,
        "        self.notes = []",
        "        self.precisions = precision.check_precision(context, False)\n        self.notes = []",
        ACCIDENTS,
    ),
    "never_compare_single_steps": Bug(CHECK, "    if steps == 1:\n        return\n", "    return\n", TIMING),
    "let_one_disturbed_window_excuse_all": Bug(CHECK, "tries >= LEAST_TRIES and ", "", TIMING),
    "accept_weights_that_stay": Bug(CHECK, "require(len(still) <= allowed,", "require(True,", TIMING),
    "accept_adapters_that_stay": Bug(CHECK, "not adapters or adapters - {*still}", "True", TIMING),
    "a_loss_may_grow": Bug(CHECK, "loss <= MAX_GROWTH * session", "loss == loss + 0 * session", TIMING),
    "accept_zeros": Bug(CHECK, "~flat.any(1)", "flat.all(1) & ~flat.any(1)", CHECKS),
    "accept_equal_items": Bug(CHECK, "require(not np.array_equal(*outputs)", "require(True", CHECKS),
    "compare_the_first_item_only": Bug(CHECK, "    place = len(output) - 1\n", "    place = 0\n", CHECKS),
    "compare_a_new_step": Bug(
        CHECK,
        "    output, first = session.read_output()",
        "    session.step()\n    output, first = session.read_output()",
        CHECKS,
    ),
    "compare_nothing_after_the_windows": Bug(
        CHILD, "items = self.check_last_step(session)", "items = self.check_last_step(session) and None", ROWS
    ),
    "tf32_as_float32_in_an_operator": Bug(CHECK, "(2 if name in", "(10 if name in", OPERATORS),
    "accept_any_operator": Bug(CHECK, "require(error < limit", "require(True", OPERATORS),
    "forget_what_the_cache_was_filled_with": Bug(
        SESSION, "(ids[:, : place + length],)", "(ids[:, start : place + length],)", TRAINS
    ),
    # The rest of a process
    "ignore_changed_threads": Bug(
        CHILD, "context.check_switches(self", "str(self", ("tests/frameworks/test_torch.py",)
    ),
    "believe_few_changes": Bug(METERS, "LEAST_PERIODS = 20", "LEAST_PERIODS = 1", ("tests/host/test_meters.py",)),
    "leave_autocast_on": Bug(
        TORCH, "set_autocast_enabled(kind, False)", "is_autocast_enabled(kind)", ("tests/frameworks/test_torch.py",)
    ),
    # A step
    "reuse_the_first_output": Bug(
        SESSION, RUN_STEP, f"{RUN_STEP}        self.run = lambda *_, first=self.last_result: first\n", WRONG
    ),
    "always_the_same_batch": Bug(
        SESSION,
        "[*self.list_steps(batches)]",
        "[*self.list_steps(batches)][:1]",
        WRONG,
    ),
    "skip_the_optimizer": Bug(MODEL, "return self.update()", "return self.last_weight", STEPS),
    "train_with_another_loss": Bug(MODEL, "self._loss = self.loss_of(", "self._loss = functional.l1_loss(", LOSS),
    "training_in_evaluation_mode": Bug(MODEL, "        module.train(usual)\n", "        pass\n", STEPS),
    "wait_for_a_batch_that_was_dropped": Bug(IMAGES, "    os._exit(1)\n", "", DROPPED),
    "a_manager_holds_the_pipe_of_its_worker": Bug(IMAGES, "descriptor <= 2", "True", WORKERS),
    # On a GPU
    "leave_a_tensor_on_the_cpu": Bug(
        TORCH, "array.to(self.device, dtype,", "array.to(self.device if array.ndim > 1 else 'cpu', dtype,", CARD
    ),
    "never_wait_for_the_gpu": Bug(TORCH, "            torch.accelerator.synchronize()\n", "            pass\n", CARD),
    "read_the_memory_of_another_gpu": Bug(TORCH, "max_memory_allocated()", "max_memory_allocated(1)", CARD),
    "reuse_pinned_memory_before_its_copy_ended": Bug(
        TORCH,
        "        return array.to(self.device, dtype, memory_format=format, non_blocking=in_background)\n",
        "        pinned = array.pin_memory()\n"
        "        moved = pinned.to(self.device, dtype, memory_format=format, non_blocking=in_background)\n"
        "        pinned.zero_()\n"
        "        return moved\n",
        CARD,
    ),
    # Language models
    "adapters_as_large_as_the_weights": Bug(
        TORCH_LLM, "inputs = layer.lora_a.shape[1]", "inputs = weights[0].numel()", ADAPTERS
    ),
    "targets_not_shifted": Bug(
        "bench/workloads/data.py", "np.ascontiguousarray(ids[:, 1:])", "np.ascontiguousarray(ids[:, :-1])", TRAINS
    ),
    "experts_that_are_alike": Bug(TORCH_LLM, "start = next(starts) % (POOL_NUMBERS // 2)", "start = 0", TRAINS),
    "experts_of_the_wrong_variance": Bug(TORCH_LLM, "weights.shape[-1] if weights.ndim == 3", "1 if False", TRAINS),
    "read_all_experts": Bug(LLM, "- round((1 - share)", "- round(0", ("tests/workloads/test_language.py",)),
    "count_gradients_of_frozen_weights": Bug(
        LLM,
        "backward = 2 * (forward - frozen) + frozen + ",
        "backward = 2 * forward + ",
        ("tests/workloads/test_language.py", "tests/frameworks/test_torch_llm.py"),
    ),
}
