#!/bin/sh
# Build an environment from a requirements file. Called by `make`:   sh bench/install.sh requirements-cuda.txt .venv
#
# Uses the user's uv, or installs one in .uv. uv is fast, and downloads a Python if none of the installed ones fits.
# Without uv, uses pip and an installed Python 3.11 or 3.12.
set -eu
requirements=$1
venv=$2
PATH=$PATH:$PWD/.uv/bin

has() { command -v "$1" >/dev/null 2>&1; }
works() { [ -x "$venv/bin/python" ] && "$venv/bin/python" -c "" 2>/dev/null; }
say() { echo "$*" >&2; }

# Without an NVIDIA driver, CUDA's libraries would be gigabytes of no use: a requirements-cpu-<name>.txt replaces them.
cpu=requirements-cpu-${requirements#requirements-cuda-}
if [ -e "$cpu" ] && ! nvidia-smi >/dev/null 2>&1; then requirements=$cpu; fi

if ! has uv; then
    say "fetching uv into .uv"
    { python3 -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check uv; } >&2 || rm -rf .uv
fi

quiet=--quiet
[ ! -t 2 ] || quiet=  # a terminal shows the progress
if has uv; then
    works || { rm -rf "$venv" && uv venv --quiet --python-preference system --python '>=3.11,<3.13' "$venv"; }
    install="uv pip install $quiet --python $venv/bin/python"
else
    for python in python3.12 python3.11; do has "$python" && break; done
    has "$python" || { say "no uv, and no Python 3.11 or 3.12 with venv (Debian: python3-venv): install one of them, or set PYTHON=..."; exit 2; }
    works || "$python" -m venv --clear "$venv"
    install="$venv/bin/python -m pip install $quiet --disable-pip-version-check"
fi

"$venv/bin/python" -m bench.host.environment >/dev/null # refuses an unusable Python before the downloads
say "installing $requirements into $venv (up to a few GB the first time)"
# uv chooses PyTorch's build for this machine (CPU only, CUDA 12 or 13 by the driver, ROCm, XPU) if PyTorch's own index
# can be reached and has the pinned version.
if [ "$requirements" = requirements-cuda.txt ] && has uv && $install --torch-backend=auto -r "$requirements" 2>/dev/null; then
    exit
fi
$install -r "$requirements" >&2
