#!/bin/sh
# Build an environment from a requirements file. Called by `make`:   sh bench/install.sh requirements-cuda.txt .venv
#
# Uses the user's uv, or installs one in .uv. uv is fast, and downloads a Python if none of the installed ones fits.
# The user's settings of pip and uv choose the index and the cache, but not where and how packages are installed.
set -eu
unset PIP_TARGET PIP_PREFIX PIP_REQUIRE_HASHES UV_REQUIRE_HASHES UV_RESOLUTION UV_MANAGED_PYTHON UV_NO_MANAGED_PYTHON
export LC_ALL=C PIP_USER=0 # awk would read 7.5 as 7 in a language with a decimal comma; a pip.conf may have user=true
requirements=$1
venv=$2
PATH=$PATH:$PWD/.uv/bin:/usr/lib/wsl/lib # WSL2's nvidia-smi, which a login over SSH or sudo does not find

has() { command -v "$1" >/dev/null 2>&1; }
works() { [ -x "$venv/bin/python" ] && "$venv/bin/python" -c "" 2>/dev/null; }
say() { echo "$*" >&2; }
stop() { say "$*"; exit 2; }
fold() { # several lines of uv into one, with the fix for a home that cannot be written
    printf %s "$*" | tr -s ' \n' ' '
    case $* in *"initialize cache"*) printf ": set UV_CACHE_DIR to a folder that you may write to" ;; esac
}

yours="as one of another user (or of sudo): use a \`git clone\` of your own"
[ -w . ] || stop "$PWD cannot be written to, $yours"

# Print the first card of CUDA_VISIBLE_DEVICES as "550.54.14, compute capability 8.0", or the first card of all if
# nvidia-smi does not know that one. Old drivers do not report the compute capability. With CUDA_BUILD, as on a login
# node, the card is elsewhere.
find_card() {
    case ${CUDA_BUILD-none} in
        none) ;;
        13) echo "580 or newer (CUDA_BUILD=13)"; return ;;
        12) echo "550.54.14 or newer (CUDA_BUILD=12)"; return ;;
        *) stop "CUDA_BUILD='$CUDA_BUILD' must be 12 or 13: set one of them, or unset it" ;;
    esac
    first=${CUDA_VISIBLE_DEVICES:-0}
    for fields in "driver_version,compute_cap --id=${first%%,*}" driver_version,compute_cap driver_version; do
        nvidia-smi --format=csv,noheader --query-gpu=$fields 2>/dev/null && break
    done | sed -n '/^[0-9]/{s/,/, compute capability/;p;q;}'
}

# Print the CUDA that the card can use. PyTorch's build for CUDA 12 has no kernels for Blackwell (10.0 and newer). MLX's
# has none before 7.5, and is linked with a newer CUDA 12.
choose_cuda() {
    echo "$card" | awk -F ', [a-z ]*' -v mlx="$(echo "$requirements" | grep -c mlx)" '
        { split($1, part, "."); driver = part[1] + part[2] / 1000; capability = $2 + 0 ? $2 + 0 : 7.5 }
        driver < 525                     { print "needs-525"; exit }
        mlx && capability < 7.5          { print "needs-7.5"; exit }
        mlx && driver < 550.054          { print "needs-550.54.14"; exit }
        driver < 580 && capability >= 10 { print "needs-580"; exit }
        driver < 580 || capability < 7.5 { print "cuda12"; exit }
                                         { print "cuda13" }'
}

# uv takes Intel's built-in graphics for a card: they are device 02.0 of the first bus. AMD's gfx000 is the CPU.
choose_gpu() {
    card=$(find_card)
    displays=$(grep -l ^0x03 /sys/bus/pci/devices/*/class 2>/dev/null | grep -v ':00:02\.0/' | sed 's/class$/vendor/')
    if [ "$card" ]; then gpu=$(choose_cuda)
    elif rocm_agent_enumerator 2>/dev/null | grep -q 'gfx[1-9]'; then gpu=hip
    elif cat /dev/null $displays | grep -q 0x8086; then gpu=xpu
    elif ! has nvidia-smi && cat /dev/null $displays | grep -q 0x10de; then
        say "an NVIDIA card, but no nvidia-smi: install the driver (in a container NVIDIA_DRIVER_CAPABILITIES=all)," \
            "or set CUDA_BUILD=13"
    elif has nvidia-smi; then say "no NVIDIA card can be used: \`nvidia-smi\` says why"
    fi
}

card=
gpu=cpu
case $requirements:${USE_GPU:-} in *:0 | requirements-mac.txt:* | */common.txt:* | */test.txt:*) ;; *) choose_gpu ;; esac
cpu=${requirements%.txt}-cpu.txt

# What is installed for which GPU. For cuda13 it is what PyPI has. PyTorch's other builds are in its own index.
options= overrides=
case $requirements:$gpu in
    requirements/mlx.txt:needs-7.5) stop "MLX needs compute capability 7.5, not $card: set FRAMEWORK=torch or USE_GPU=0" ;;
    *:needs-*) stop "NVIDIA driver $card: install driver ${gpu#needs-} or newer, or set PYTHON=... or USE_GPU=0" ;;
    requirements-cuda.txt:cuda12) options=--torch-backend=cu126 overrides=requirements/torch-cuda12.txt ;;
    requirements-cuda.txt:cpu) options=--torch-backend=cpu ;;
    requirements-cuda.txt:hip | requirements-cuda.txt:xpu) options=--torch-backend=auto ;;
    *:cuda12)
        sed -e 's/\[cuda13\]/[cuda12]/' -e 's,^-r ,-r requirements/,' "$requirements" >"$venv.txt"
        requirements=$venv.txt ;;
    *:cpu | *:hip | *:xpu) [ ! -e "$cpu" ] || requirements=$cpu ;;
esac

if ! has uv; then
    say "fetching uv into .uv"
    python3 -m venv .uv >&2 || { rm -rf .uv && stop "install uv or Python's venv (python3-venv), or set PYTHON=..."; }
    .uv/bin/pip install --quiet --disable-pip-version-check uv >&2 ||
        { rm -rf .uv && stop "pip could not install uv, see above: install uv, or set PYTHON=..."; }
fi
case $requirements in *tensorflow*) newest=13 ;; *) newest=14 ;; esac
why=
# Python 3.12 has the newest versions of all frameworks. A company or a cluster may block uv's download of it.
for choice in 3.12 ">=3.11,<3.$((newest + 1)) --no-python-downloads"; do
    works && break
    rm -rf "$venv" 2>/dev/null || stop "$venv cannot be removed, $yours"
    why=$(uv venv --quiet --python-preference system --python $choice "$venv" 2>&1) || :
done
case $why in *nterpreter* | *"Python"*) why="$why: install python3.12, or set PYTHON=... to Python 3.11 to 3.$newest" ;; esac
works || stop "$(fold "$why")"
"$venv/bin/python" -c "import platform, sys; sys.exit(sys.platform + platform.machine() == 'darwinx86_64')" ||
    stop "frameworks do not run on Intel Macs or in Rosetta: \`arch -arm64 brew install python@3.12\`, then \`make clean\`"

quiet=$([ -t 2 ] || echo --quiet) # a terminal shows the progress
into="--python $venv/bin/python${overrides:+ --override $overrides}"

# Install with these options of uv; says in one line why it cannot.
try() {
    why=$(uv pip install --quiet --dry-run $into "$@" 2>&1) && uv pip install $quiet $into "$@" >&2 && return
    [ -z "$why" ] || say "$(fold "$why")"
    case $why in *"no version of"* | *"no wheels with"* | *"initialize cache"*) exit 2 ;; esac # in any other index either
    return 2
}

say "installing $requirements into $venv${card:+, NVIDIA driver $card}${options:+, $options}: up to a few GB"
if ! try $options -r "$requirements"; then
    [ "$options" ] || exit 2
    [ "$gpu" != cuda12 ] || stop "NVIDIA driver $card needs PyTorch for CUDA 12.6, which uv could not get:" \
        "install driver 580 or newer (if the compute capability is 7.5 or newer), or set PYTHON=..."
    say "uv could not get PyTorch with $options: installing the build of PyPI, for CUDA 13"
    try -r "$requirements"
fi

[ "$requirements" = requirements-cuda.txt ] && [ "$gpu" != cpu ] || exit 0
"$venv/bin/python" -c "import sys, torch; sys.exit(not torch.version.${gpu%1?})" && exit
say "PyTorch has no support for this GPU ($gpu): unset UV_TORCH_BACKEND, update uv, \`make clean\`, then make again"
[ -z "$card" ] || exit 2
