# The front door: `make` lists what there is, and whatever needs packages installs them first.
#
#   USE_GPU=1 BATCH_SIZE=64 make image     settings may stand on either side of make
#   PYTHON=python3 make image              uses that interpreter and installs nothing
#
# Settings have no defaults here: bench/settings.py declares them. GNU make 3.81, the Mac's, is enough.

.DEFAULT_GOAL := help
.PHONY: help image mlp transformer tflops plot compare table doctor test selfcheck resolve-mac clean

# On a Mac one environment holds both frameworks; on Linux each has its own (requirements-cuda.txt says why).
MAC := $(filter Darwin,$(shell uname -s))
TORCH := .venv
TENSORFLOW := $(if $(MAC),.venv,.venv-tensorflow)
IS_TENSORFLOW := $(filter tensorflow TensorFlow Tensorflow TENSORFLOW tf TF,$(FRAMEWORK))
IS_TORCH := $(if $(IS_TENSORFLOW),,$(FRAMEWORK))
VENV := $(if $(IS_TENSORFLOW),$(TENSORFLOW),$(TORCH))

ifeq ($(PYTHON),)
RUN := $(VENV)/bin/python
READY := $(VENV)/installed
else
RUN := $(PYTHON)
READY :=
endif

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@$(or $(PYTHON),$(wildcard $(VENV)/bin/python),python3) bench/settings.py

image: $(READY) ## images per second of an image network
	@$(RUN) image_benchmark.py

mlp: $(READY) ## images per second of a multilayer perceptron on CIFAR-10
	@$(RUN) mlp_benchmark.py

transformer: $(READY) ## sequences per second of BERT-like encoders
	@$(RUN) transformer_benchmark.py

tflops: $(READY) ## the machine's ceilings: matrix products over sizes and precisions, memory bandwidth
	@$(RUN) tflops_sweep.py

plot: $(READY) ## pictures and tables of everything in results/
	@$(RUN) plot_results.py

compare: $(READY) ## row by row: make compare A=results/x.csv B=results/y.csv, or two machines' names
	@$(RUN) compare_results.py

table: $(READY) ## the latest rows of this machine, to paste into an issue
	@$(RUN) -m bench.rows.tables

doctor: ## what can run here, what cannot, and the command that mends it
	@for python in $(VENV)/bin/python python3 $(PYTHON); do \
	    "$$python" -c "" 2>/dev/null && exec "$$python" -m bench.doctor; \
	done; echo "no Python answers: install Python 3.12, or name one by PYTHON=..." >&2; exit 1

test: $(if $(READY),$(if $(IS_TORCH),$(READY),$(TORCH)/installed $(TENSORFLOW)/installed)) ## the tests, of both frameworks unless FRAMEWORK names one
ifneq ($(or $(PYTHON),$(IS_TORCH),$(MAC)),)
	@$(RUN) -m pytest
else
	@$(if $(IS_TENSORFLOW),,FRAMEWORK=torch $(TORCH)/bin/python -m pytest)
	@FRAMEWORK=tensorflow TORCH_PYTHON=$(TORCH)/bin/python $(TENSORFLOW)/bin/python -m pytest
endif

selfcheck: $(READY) ## our figures beside those of hand-written loops (about ten minutes)
	@$(RUN) -m tests.selfcheck

resolve-mac: $(addprefix resolve-mac-,3.11 3.12 3.13 3.14) ## proves that requirements-mac.txt can be installed on a Mac

resolve-mac-%: $(READY)
	@MACOSX_DEPLOYMENT_TARGET=14.0 $(RUN) -m uv pip compile --quiet --only-binary :all: \
	    --python-platform aarch64-apple-darwin --python-version $* requirements-mac.txt >/dev/null
	@echo "Python $* on Apple silicon: resolved"

clean: ## removes what was installed here
	rm -rf .venv .venv-tensorflow .uv

.venv/installed: $(if $(MAC),requirements-mac.txt,requirements-cuda.txt) requirements-common.txt bench/install.sh
	@sh bench/install.sh $< .venv
	@touch $@

.venv-tensorflow/installed: requirements-cuda-tensorflow.txt requirements-common.txt bench/install.sh
	@sh bench/install.sh $< .venv-tensorflow
	@touch $@
