"""NVIDIA's driver on a machine without one: libcuda and NVML in one library, built from a few lines of C.

The machine has a GT 1030 in its first slot and an RTX 4090 in its second. CUDA counts the faster one first, as the
real one does without CUDA_DEVICE_ORDER.
"""

import shutil
import subprocess

import pytest

SLOW = ("NVIDIA GeForce GT 1030", "GPU-11111111-1111-1111-1111-111111111111")
FAST = ("NVIDIA GeForce RTX 4090", "GPU-22222222-2222-2222-2222-222222222222")
SLICE = ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG-33333333-3333-3333-3333-333333333333")

SOURCE = r"""
#include <stdlib.h>
#include <string.h>
static const char *names[] = {"NVIDIA GeForce GT 1030", "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"};
static const char *uuids[] = {"GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222"};

/* The slot of CUDA's first card, 2 for a MIG slice, or -1: only the first entry of the list counts here. */
static int first(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *order = getenv("CUDA_DEVICE_ORDER");
    int by_slot = order && !strcmp(order, "PCI_BUS_ID"), number = visible ? atoi(visible) : 0;
    if (visible && !strncmp(visible, "MIG-", 4)) return 2;
    if (visible && !strncmp(visible, "GPU-", 4))
        return strncmp(visible, uuids[0], strlen(visible)) ? strncmp(visible, uuids[1], strlen(visible)) ? -1 : 1 : 0;
    if (visible && (*visible < '0' || *visible > '9' || number > 1)) return -1;
    return by_slot ? number : 1 - number;
}
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuInit(unsigned flags) { return CUDA ? CUDA : first() < 0 ? 100 : 0; }
int cuDeviceGet(int *card, int number) { *card = 7; return number; }
int cuDeviceGetName(char *name, int length, int card) { strncpy(name, names[first()], length); return card != 7; }
int cuDeviceGetUuid(char *uuid, int card) { return 1; }
int cuDeviceGetAttribute(int *value, int attribute, int card) { /* 3 and 128 multiprocessors; 6.1 and 8.9 */
    int values[][3] = {{3, 6, 1}, {128, 8, 9}, {14, 8, 0}};
    *value = values[first()][attribute == 16 ? 0 : attribute - 74];
    return card != 7;
}
int cuDeviceGetUuid_v2(char *uuid, int card) { memset(uuid, 0x11 * (first() + 1), 16); return card != 7; }

/* A handle is a pointer; temperatures, clocks and joules tell the cards apart. */
static int slot(void *card) { return (const char **)card - uuids; }
int nvmlInitWithFlags(unsigned flags) { return NVML; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **card) {
    for (int i = 0; i < 2; i++)
        if (!strcmp(uuid, uuids[i])) { *card = uuids + i; return 0; }
    return 6;
}
int nvmlDeviceGetTotalEnergyConsumption(void *card, unsigned long long *millijoules) {
    *millijoules = 5000123ULL + 1000000000000ULL * slot(card);
    return ENERGY;
}
int nvmlDeviceGetTemperature(void *card, int sensor, unsigned *degrees) { *degrees = 61 + slot(card); return sensor; }
int nvmlDeviceGetClockInfo(void *card, int kind, unsigned *mhz) { *mhz = 1980; return kind != 1; }
int THROTTLE(void *card, unsigned long long *reasons) { *reasons = 0x4 | 0x40; return 0; }
"""


def build(folder, cuda=0, nvml=0, energy=0, throttle="nvmlDeviceGetCurrentClocksEventReasons"):
    """The path of the library, whose start and whose energy counter return these statuses.

    Args:
        throttle: the name of the function that says why a clock is low; older drivers have another one.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler to build a driver with")
    path = folder / f"libnvidia-{cuda}-{nvml}-{energy}-{len(throttle)}.so"
    defines = [f"-DCUDA={cuda}", f"-DNVML={nvml}", f"-DENERGY={energy}", f"-DTHROTTLE={throttle}"]
    command = [compiler, "-shared", "-fPIC", *defines, "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return str(path)
