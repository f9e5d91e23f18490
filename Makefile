# `make` lists the commands. A command that needs packages installs them first.
#
#   USE_GPU=1 BATCH_SIZE=64 make image     settings can be set before or after make
#   PYTHON=python3 make image              uses that interpreter and installs nothing
#
# bench/settings.py declares the settings and their defaults. GNU make 3.81, which a Mac has, is enough.

.NOTPARALLEL:  # two measurements at the same time would disturb each other
COMMANDS := help settings doctor install all image mlp transformer llm diffusion tflops best plot compare submit \
            clean check-results test selfcheck resolve-mac check-mac python
.PHONY: $(COMMANDS)

# The names of the frameworks. A shell reads the user's text, quoted, and only its letters and commas count;
# bench/settings.py refuses the rest. (The shell of make 3.81 has no variables of make's command line.)
FRAMEWORK_NAMES := $(or $(shell printf '%s\n' '$(subst ','\'',$(value FRAMEWORK))' | tr 'A-Z,' 'a-z\n' | \
    tr -cd 'a-z\n' | sed 's/^pytorch$$/torch/; s/^tf$$/tensorflow/'),torch)
OTHER_FRAMEWORKS := tensorflow jax mlx
ASKED_FOR := $(if $(filter all,$(FRAMEWORK_NAMES)),torch $(OTHER_FRAMEWORKS),$(FRAMEWORK_NAMES))
IS_MAC := $(filter Darwin,$(shell uname -s))
# The environment of a framework is .venv. On Linux those of the others are .venv-jax ..., as requirements-cuda.txt explains.
venv_of = .venv$(if $(IS_MAC),,$(addprefix -,$(filter $(1),$(OTHER_FRAMEWORKS))))
in_each_venv = $(sort $(foreach name,$(ASKED_FOR),$(call venv_of,$(name))/$(1)))
VENV := $(call venv_of,$(firstword $(FRAMEWORK_NAMES)))

# A setting on the command line that none of its commands uses is refused. (Make reads MAKECMDGOALS of the environment.)
export COMMANDS_OF_LINE := $(MAKECMDGOALS)
unexport PYTHONSAFEPATH  # scripts would not find bench/
ifndef PYTHON
unexport PYTHONHOME PYTHONPATH  # the modules of a cluster set them for their own Python
CANNOT_RUN := $(VENV)/bin/python cannot be run, as one of another user (or of sudo): use a `git clone` of your own
RUN := [ -x $(VENV)/bin/python ] || { echo '$(CANNOT_RUN)' >&2; exit 2; }; exec $(VENV)/bin/python
READY := $(call in_each_venv,installed)
INSTALLED := installed: $(ASKED_FOR)
# To read results, an older environment of a framework is enough, or one that has none.
READ_VENV := $(firstword $(patsubst %/installed,%,$(wildcard $(VENV)/installed .venv/installed)) .venv-common)
READ_READY := $(filter .venv-common/installed,$(READ_VENV)/installed)
READ := $(subst $(VENV)/,$(READ_VENV)/,$(RUN))
else
RUN := "$$PYTHON"
READY := python
INSTALLED := nothing is installed, because PYTHON is set: unset it, or install the packages there
READ := $(RUN)
READ_READY := python
endif

# Runs a module that needs no packages, if there is a Python for it.
find_python = for python in "$$PYTHON" $(VENV)/bin/python python3 python3.12 python3.11; do \
    "$$python" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null && exec "$$python" $(1); done
any_python = $(find_python); \
    echo "no Python 3.11 or newer was found: \`make image\` installs one, or set PYTHON=..." >&2; exit 1

# Anything else on the command line is refused before the first command runs.
UNKNOWN := $(firstword $(filter-out $(COMMANDS) .venv%,$(MAKECMDGOALS)))
GUESS = -c 'import difflib, sys; print(*difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1))'
MEANT := $(if $(UNKNOWN),$(shell $(call find_python,$(GUESS) '$(subst ','\'',$(UNKNOWN))' $(COMMANDS))))
$(if $(UNKNOWN),$(error $(UNKNOWN) is not a command$(if $(MEANT), (did you mean $(MEANT)?)): see `make help`; write NAME=value, and lists with commas only))

help: ## show this list
	@{ awk -F ':.*## ' '/^## / { print "\n" substr($$0, 4) } \
	    /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile; \
	    echo; echo 'Settings (BATCH_SIZE=1,8 make image), which `make settings` explains:'; \
	    awk -F ' *[|] *' '/^[|] [A-Z]/ { printf " %s", $$2 } END { print "" }' docs/settings.md | fold -s -w 78 | \
	    sed 's/^ */  /'; } | cat || :  # as in `make help | head -1`

settings: ## every setting, with its meaning and its default
	@cat docs/settings.md || :

doctor: ## what can run here, what cannot, and how to fix it
	@$(call any_python,-m bench.doctor)

install: $(READY) ## install PyTorch, or FRAMEWORK (all: every one)
	@$(if $(filter all,$(FRAMEWORK_NAMES)),,($(call find_python,-m bench.settings); :) &&) echo "$(INSTALLED)"

all: $(READY) ## the standard set and a results card (QUICK=1: in minutes)
	@$(RUN) measure_all.py

image: $(READY) ## images/s of an image model
mlp: $(READY) ## images/s of a multilayer perceptron on CIFAR-10
transformer: $(READY) ## sequences/s of BERT-like encoders
llm: $(READY) ## tokens/s of a language model in prefill and decode
diffusion: $(READY) ## steps/s of a diffusion model, which makes images

image mlp transformer llm diffusion:
	@$(RUN) $@_benchmark.py

tflops: $(READY) ## the machine's peaks: matmuls, memory bandwidth and others
	@$(RUN) tflops_sweep.py

best: $(READY) ## the fastest settings of a workload on this machine
	@$(RUN) best_settings.py

plot: $(READ_READY) ## draw all plots and cards, and write the results page
	@$(READ) plot_results.py

compare: $(READ_READY) ## compare two machines or results files, A=... B=...
	@$(READ) compare_results.py

submit: $(READ_READY) ## check this machine's rows and print how to send them
	@$(READ) submit_results.py submit

clean: ## remove the virtual environments and uv (.venv*, .uv)
	rm -rf .venv .venv-* .uv

## To maintain the program and its results:

check-results: $(READ_READY) ## check the rows added since BASE (default: origin/main)
	@$(READ) submit_results.py check

# The tests of another framework compare it with PyTorch. Those of one file share their models, and so a process.
PARALLEL := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: $(if $(value PYTHON),python,$(sort .venv/tested $(call in_each_venv,tested))) ## test the program in FRAMEWORK (all: 15 GB)
	@$(if $(value PYTHON),$(RUN) -m pytest,set -e; $(foreach name,$(ASKED_FOR),FRAMEWORK=$(name) \
	    TORCH_PYTHON=.venv/bin/python $(call venv_of,$(name))/bin/python -m pytest $(PARALLEL);))

selfcheck: $(READY) $(if $(value PYTHON),,$(call in_each_venv,tested)) ## compare measured rates with hand-written loops (half an hour)
	@$(RUN) -m checks.selfcheck

UV_MAC := MACOSX_DEPLOYMENT_TARGET=14.0 .venv/bin/python -m uv pip
FOR_MAC := --quiet --only-binary :all: --python-platform aarch64-apple-darwin --python-version

resolve-mac: .venv/tested ## check that requirements-mac.txt resolves on a Mac
	@set -e; for version in 3.11 3.12 3.13 3.14; do echo "Python $$version on Apple silicon"; \
	    $(UV_MAC) compile $(FOR_MAC) $$version requirements-mac.txt >/dev/null; done

# Their functions differ between macOS and Linux.
CHECKED_FOR_MAC := torch|mlx|mlx-metal|mlx-lm|tensorflow|psutil|zeus-apple-silicon
check-mac: .venv/tested ## check our code against the packages for a Mac (2 GB)
	@set -e; pins=$$($(UV_MAC) compile $(FOR_MAC) 3.12 requirements-mac.txt | grep -E '^($(CHECKED_FOR_MAC))=='); \
	    echo $$pins; $(UV_MAC) install $(FOR_MAC) 3.12 --no-deps --target .venv-mac-wheels $$pins
	@PYTHONPATH=.venv-mac-wheels .venv/bin/python -m basedpyright --pythonpath .venv/bin/python --pythonplatform Darwin

python:
	@"$$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { printf "PYTHON='%s' is not a Python 3.11 or newer: %s\n" "$$PYTHON" "set the path of one, without options" >&2; exit 2; }

# A mistake in the settings of these commands is told before gigabytes are installed.
CHECKED := $(filter all image mlp transformer llm diffusion tflops best plot compare \
    $(if $(filter all,$(FRAMEWORK_NAMES)),,install),$(MAKECMDGOALS))
INSTALL = $(if $(CHECKED),($(call find_python,-m bench.settings); :) &&) \
    sh bench/install.sh $< $(@D) && touch $@

.venv/installed: $(if $(IS_MAC),requirements-mac.txt,requirements-cuda.txt requirements/torch-cuda12.txt) requirements/common.txt bench/install.sh
	@$(INSTALL)

.SECONDEXPANSION:
.PRECIOUS: .venv-%/installed
.venv-%/installed: requirements/%.txt $$(wildcard requirements/$$*-cpu.txt) requirements/common.txt bench/install.sh
	@$(INSTALL)

%/tested: requirements/test.txt %/installed
	@$(INSTALL)
