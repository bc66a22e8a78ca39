#!/usr/bin/env python3
"""Compares what polyrank_probe says of the GPUs with what nvidia-smi says, fact by fact.

usage: against_smi.py PROBE
Prints one line for each fact; exits with 1 if one differs, 77 without nvidia-smi or a GPU.
"""
# SPDX-License-Identifier: Apache-2.0
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def smi(fields: list[str]) -> list[dict[str, str]]:
    lines = run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    return [dict(zip(fields, [v.strip() for v in line.split(",")])) for line in lines.splitlines()]


def probe(program: str, folder: Path, *arguments: str) -> dict:
    file = folder / "out.json"
    subprocess.run([program, "topo", "--quiet", "--json", file, *arguments], stdout=subprocess.DEVNULL)
    return json.loads(file.read_text())


def main() -> int:
    if shutil.which("nvidia-smi") is None or not run("nvidia-smi", "-L").startswith("GPU "):
        print("against_smi: skipped, no GPU")
        return 77
    program = sys.argv[1]
    different = 0

    def same(what: str, ours, theirs) -> None:
        nonlocal different
        good = ours == theirs
        different += not good
        print(f"{'same  ' if good else 'DIFFER'} {what}: {ours}" + ("" if good else f", nvidia-smi: {theirs}"))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = probe(program, folder)
        theirs = smi(["pci.bus_id", "uuid", "name", "driver_version", "compute_cap", "memory.total",
                      "pcie.link.width.current", "pcie.link.gen.max", "pcie.link.width.max",
                      "ecc.errors.uncorrected.volatile.total", "mig.mode.current", "compute_mode"])
        same("GPUs", len(ours["gpus"]), len(theirs))
        on_off = {"Enabled": "on", "Disabled": "off"}
        modes = {"Default": "default", "Prohibited": "prohibited", "Exclusive_Process": "exclusive process"}
        for gpu, smi_gpu in zip(ours["gpus"], theirs):
            who = gpu["name"]
            same(f"{who} address", gpu["pci_address"], smi_gpu["pci.bus_id"].lower()[4:])
            same(f"{who} uuid", gpu["uuid"], smi_gpu["uuid"])
            same(f"{who} model", gpu["model"], smi_gpu["name"])
            same(f"{who} capability", gpu["sm"], round(float(smi_gpu["compute_cap"]) * 10))
            same(f"{who} memory in MiB", gpu["memory_total"] // MIB, int(smi_gpu["memory.total"]))
            same(f"{who} PCIe lanes", gpu["pcie_now"]["width"], int(smi_gpu["pcie.link.width.current"]))
            same(f"{who} PCIe most", gpu["pcie_max"], {"gen": int(smi_gpu["pcie.link.gen.max"]),
                                                        "width": int(smi_gpu["pcie.link.width.max"])})
            same(f"{who} ECC errors", gpu.get("ecc_uncorrected"),
                 int(smi_gpu["ecc.errors.uncorrected.volatile.total"]))
            same(f"{who} MIG", gpu.get("mig"), on_off.get(smi_gpu["mig.mode.current"]))
            same(f"{who} compute mode", gpu["compute_mode"], modes[smi_gpu["compute_mode"]])
            same(f"{who} seen by CUDA", gpu.get("cuda"), True)
        same("driver", ours["hosts"][0]["driver"], theirs[0]["driver_version"])

        # The matrix, through our own reader of it.
        (folder / "topo.txt").write_text(run("nvidia-smi", "topo", "-m"))
        matrix = probe(program, folder, "--from", str(folder / "topo.txt"))
        for gpu, other in zip(ours["gpus"], matrix["gpus"]):
            same(f"{gpu['name']} CPUs", gpu["cpus"], other["cpus"])
            if other.get("numa") is not None:
                same(f"{gpu['name']} NUMA node", gpu["numa"], other["numa"])
        for pair, other in zip(ours["pairs"], matrix["pairs"]):
            same(f"pair {pair['a']}-{pair['b']}", pair["link"], other["link"])
    print(f"against_smi: {different} facts differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
