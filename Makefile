# The front door: `make` lists what there is, and whatever needs packages installs them first.
#
#   USE_GPU=1 BATCH_SIZE=64 make image     settings may stand on either side of make
#   PYTHON=python3 make image              uses that interpreter and installs nothing
#
# Settings have no defaults here: bench/settings.py declares them. GNU make 3.81, the Mac's, is enough.

.DEFAULT_GOAL := help
.PHONY: help image test selfcheck resolve-mac clean

REQUIREMENTS := $(if $(filter Darwin,$(shell uname -s)),requirements-mac.txt,requirements-cuda.txt)

ifeq ($(PYTHON),)
RUN := .venv/bin/python
READY := .venv/installed
else
RUN := $(PYTHON)
READY :=
endif

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@$(or $(PYTHON),$(wildcard .venv/bin/python),python3) bench/settings.py

image: $(READY) ## images per second of an image network
	@$(RUN) image_benchmark.py

test: $(READY) ## the tests
	@$(RUN) -m pytest

selfcheck: $(READY) ## our figures beside those of hand-written loops (about ten minutes)
	@$(RUN) -m tests.selfcheck

resolve-mac: $(READY) ## proves that requirements-mac.txt can be installed on a Mac
	@for version in 3.11 3.12 3.13 3.14; do \
	    MACOSX_DEPLOYMENT_TARGET=14.0 $(RUN) -m uv pip compile --quiet --only-binary :all: \
	        --python-platform aarch64-apple-darwin --python-version $$version requirements-mac.txt >/dev/null \
	    && echo "Python $$version on Apple silicon: resolved" || exit 1; \
	done

clean: ## removes what was installed here
	rm -rf .venv .uv

.venv/installed: $(REQUIREMENTS) requirements-common.txt bench/install.sh
	@sh bench/install.sh $(REQUIREMENTS)
	@touch $@
