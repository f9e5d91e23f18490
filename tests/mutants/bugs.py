"""Bugs that a benchmark may have: a few lines of a file, which occur once, and what replaces them: {name: Bug}."""

from collections import namedtuple

WINDOWS, INTERVALS = "bench/timing/windows.py", "bench/timing/intervals.py"
CHECK, PRECISION = "bench/check.py", "bench/precision.py"
SESSION, TORCH, CHILD = "bench/frameworks/session.py", "bench/frameworks/pytorch/on_torch.py", "bench/child.py"
MODEL, BASE = "bench/frameworks/pytorch/on_torch_model.py", "bench/frameworks/base.py"
TIMED = "bench/timing/__init__.py"
TIMING = "tests/timing/test_windows.py"
CHECKS = "tests/test_check.py"
ACCIDENTS = "tests/frameworks/test_accidents.py"
STEPS = "tests/frameworks/test_torch.py::test_training_has_its_optimizer_and_training_mode"
LOSS = "tests/frameworks/test_torch.py::test_the_loss_is_the_mean_squared_error_of_the_noise"
COMBINE, COMBINED = "bench/records/tables.py", "tests/records/test_tables.py"
ROWS = "tests/test_child.py"
RUN = "tests/test_run.py"
TRAINS = "tests/frameworks/test_llm.py"
WRONG = "tests/frameworks/test_contract.py"
CARD = "tests/frameworks/test_torch.py::test_what_a_process_can_show_on_a_card"
Bug = namedtuple("Bug", "file before after test")  # the test that should fail because of it

ITEMS = "        items_in_window, seconds = "
RUN_STEP = "        self.last_result = self.run(*arguments)\n"

BUGS = {
    # Several processes
    "intervals_that_shrink": Bug(COMBINE, "low = min(", "low = max(", COMBINED),
    "disturbed_processes_count": Bug(COMBINE, '.mask(rows["is_disturbed"], 2)', "", COMBINED),
    "accept_unequal_weights_of_ranks": Bug(CHILD, "require(not unlike", "require(True", "tests/test_ranks.py"),
    "divide_by_the_wrong_batch_size": Bug(
        CHILD, "            workload.items_per_step * group", "            2 * workload.items_per_step * group", ROWS
    ),
    # Slices
    "time_the_step_after_a_pause": Bug(WINDOWS, "        timed(self.session, self.clock, 1)\n", "", TIMING),
    "the_same_one_first_in_every_round": Bug("bench/run.py", "runs if number % 2 else runs[::-1]", "runs", RUN),
    # A window
    "skip_a_step": Bug(TIMED, "range(steps)", "range(steps - (steps > 1))", TIMING),
    "no_read": Bug(TIMED, "    session.read()\n", "", TIMING),
    "time_what_comes_before_a_part": Bug(
        TIMED,
        "        session.prepare()\n        session.synchronize()\n    start = clock()\n",
        "        pass\n    start = clock()\n    if session.prepare:\n        session.prepare()\n",
        TIMING,
    ),
    "garbage_collector_on": Bug(WINDOWS, "    gc.disable()\n", "", TIMING),
    # A series of windows
    "drop_the_slowest_window": Bug(WINDOWS, ITEMS, f"        windows = sorted(windows)[:-1]\n{ITEMS}", TIMING),
    "time_the_first_step": Bug(WINDOWS, "steps, sum(windows)", "steps, sum(windows) + self.first_step_seconds", TIMING),
    "no_warm_up": Bug(WINDOWS, "MIN_WARMUP_SECONDS and is_steady(paces)", "0", TIMING),
    "gaps_in_a_pipeline": Bug(WINDOWS, "            last = now\n", "            last = self.clock()\n", TIMING),
    "narrow_interval": Bug(INTERVALS, "NORMAL_QUANTILE = 1.959964", "NORMAL_QUANTILE = 1.0", TIMING),
    "forget_autocorrelation": Bug(INTERVALS, "rho = sign_autocorrelation(samples)", "rho = 0", TIMING),
    # The checks
    "accept_another_number_of_parameters": Bug(CHECK, "expected in (None, counted)", "True", ACCIDENTS),
    "accept_any_gradient": Bug(CHECK, "low <= ratio <= high", "True", CHECKS),
    "accept_a_model_that_was_not_compiled": Bug(
        CHECK, "not context.compile or context", "True or context", "tests/frameworks/test_torch.py"
    ),
    "tf32_as_float32": Bug(PRECISION, '(5e-5, "float32"), (1e-3, "tf32")', '(1e-3, "float32"), (1e-3, "tf32")', CHECKS),
    "accept_float16_as_float32": Bug(PRECISION, "PROBE_SCALE = 2.0**16", "PROBE_SCALE = 1.0", WRONG),
    "look_at_the_precision_before_the_first_step": Bug(
        SESSION,
        "        self.notes = []",
        "        self.precisions = precision.check_precision(self.context, False)\n        self.notes = []",
        ACCIDENTS,
    ),
    "never_compare_single_steps": Bug(CHECK, "    if steps == 1:\n        return\n", "    return\n", TIMING),
    "accept_weights_that_stay": Bug(CHECK, "require(len(still) <= allowed,", "require(True,", ACCIDENTS),
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
        CHILD, "items = session.check_last_output()", "items = session.check_last_output() and None", ROWS
    ),
    "accept_any_operator": Bug(CHECK, "require(error < limit", "require(True", "tests/workloads/test_operators.py"),
    "forget_the_prompt": Bug(SESSION, "ids[:, : place + length]", "ids[:, start : place + length]", TRAINS),
    # A step
    "reuse_the_first_output": Bug(
        SESSION, RUN_STEP, f"{RUN_STEP}        self.run = lambda *_, first=self.last_result: first\n", WRONG
    ),
    "skip_the_optimizer": Bug(MODEL, "return self.update()", "return self.last_weight", WRONG),
    "train_with_another_loss": Bug(MODEL, "self._loss = self.loss_of(", "self._loss = functional.l1_loss(", LOSS),
    "training_in_evaluation_mode": Bug(BASE, "        module.train(usual)\n", "        pass\n", STEPS),
    # On a GPU
    "leave_a_tensor_on_the_cpu": Bug(
        TORCH, "array.to(self.device, dtype,", "array.to(self.device if array.ndim > 1 else 'cpu', dtype,", CARD
    ),
    "never_wait_for_the_gpu": Bug(TORCH, "            torch.accelerator.synchronize()\n", "            pass\n", CARD),
    # Language models
    "targets_not_shifted": Bug(
        "bench/workloads/data.py", "np.ascontiguousarray(ids[:, 1:])", "np.ascontiguousarray(ids[:, :-1])", TRAINS
    ),
}
