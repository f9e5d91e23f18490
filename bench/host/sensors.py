"""Read the hardware's sensors: energy counters; temperature and clock of an NVIDIA card; a Mac's thermal pressure.

An energy counter has `power_scope`, what it measures ("gpu board"), and joules(), a reading that grows from an unknown
start. A sensor that cannot be read raises an exception whose text says why and how to get it.
"""

from __future__ import annotations

from bench.host.environment import find_card, output_of

APPLE_PARTS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "gpu sram": "gpu_sram_mj", "dram": "dram_mj", "ane": "ane_mj"}
PRESSURE_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")  # libkern/OSThermalNotification.h
# nvmlClocksEventReason...: bits of nvmlDeviceGetCurrentClocksEventReasons(), in nvml.h
SLOWED_BY = {"hw_slowdown": 0x8, "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake": 0x80}
REASONS = {"sw_power_cap": 0x4} | SLOWED_BY  # the power limit is normal under full load


class NvidiaCard:
    """Reads the first card of CUDA_VISIBLE_DEVICES. https://docs.nvidia.com/deploy/nvml-api/"""

    power_scope = "gpu board"

    def __init__(self, device_name):
        import pynvml

        card = find_card()
        if card is None or card.name != device_name:  # AMD's card, or cards in another order
            raise OSError(f"nvidia-smi does not report {device_name} as the first card")
        pynvml.nvmlInit()
        self._nvml, self._card = pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(card.index))

    def joules(self):
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card) / 1000  # NVML counts millijoules

    def busy_percent(self):
        """Return how much of the last moments the card was in use, by any program."""
        return self._nvml.nvmlDeviceGetUtilizationRates(self._card).gpu

    def read(self):
        """Return columns: temperature, SM clock, and the REASONS why that clock is low."""
        nvml, card = self._nvml, self._card
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(card)
        return {
            "clock_mhz": nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
            "temperature_c": nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": " ".join(name for name, bit in REASONS.items() if reasons & bit),
        }


class AppleChip:
    """Reads the energy of the whole chip, as IOReport estimates it. https://github.com/ml-energy/zeus-apple-silicon"""

    def __init__(self, chip_name):
        from zeus_apple_silicon import AppleEnergyMonitor

        self._monitor = AppleEnergyMonitor()
        counted = self._monitor.get_cumulative_energy()
        parts = {part: name for part, name in APPLE_PARTS.items() if getattr(counted, name) is not None}
        if "Ultra" in (chip_name or ""):  # two dies, and the package reads the CPU counters of only one
            parts.pop("cpu", None)
        if not parts:
            raise OSError("this Mac's chip has no energy counters")
        self._names, self.power_scope = list(parts.values()), "+".join(parts)

    def joules(self):
        counted = self._monitor.get_cumulative_energy()
        return sum(getattr(counted, name) for name in self._names) / 1000


def read_thermal_pressure():
    """Return the column of a Mac's thermal pressure, one of PRESSURE_LEVELS; all but "nominal" slow it."""
    printed = output_of("notifyutil", "-g", "com.apple.system.thermalpressurelevel") or ""  # notify(3)
    return {"thermal_pressure": PRESSURE_LEVELS[int(printed.rpartition(" ")[2])]}
