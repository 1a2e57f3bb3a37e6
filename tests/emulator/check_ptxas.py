#!/usr/bin/env python3
"""Checks what ptxas reports of the CUDA kernels (registers, spills, shared memory) against ptxas_budgets.json.

    check_ptxas.py BUDGETS.json REPORT.ptxas...            exit code 1 when a kernel spills or exceeds its budget
    check_ptxas.py --spills REPORT.ptxas...                 look for spills alone: for other architectures
    check_ptxas.py --update BUDGETS.json REPORT.ptxas...   write the figures found as the new budgets,
                                                         registers rounded up to 8 as the hardware allots them

A report is nvcc's output with -Xptxas -v; its name without the extension is that of kernels/<name>.cu. A budget holds
for all instantiations of one __global__ function: the largest register count and static shared memory among them.
Spilled bytes are never allowed.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def demangle(symbols):
    """Function names without namespaces, template arguments and parameters."""
    try:
        text = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as e:
        sys.exit(f"check_ptxas: c++filt (Debian package binutils) is needed: {e}")
    names = []
    for full in text.splitlines():
        full = full.replace("(anonymous namespace)::", "")
        names.append(re.split(r"[<(]", full)[0].split()[-1].split("::")[-1])
    return names


def read_report(path):
    """[{kernel, arch, registers, shared, spills}] of one report."""
    found, symbols = [], []
    for line in Path(path).read_text().splitlines():
        if match := ENTRY.search(line):
            symbols.append(match[1])
            found.append({"arch": match[2], "registers": None, "shared": 0, "spills": None})
        elif found and (match := SPILL.search(line)) and found[-1]["spills"] is None:
            found[-1]["spills"] = int(match[2]) + int(match[3])
        elif found and (match := USED.search(line)) and found[-1]["registers"] is None:
            found[-1]["registers"] = int(match[1])
            shared = SHARED.search(line)
            found[-1]["shared"] = int(shared[1]) if shared else 0
    if not found:
        sys.exit(f"check_ptxas: {path} names no kernel; was it written by nvcc -Xptxas -v?")
    for entry, name in zip(found, demangle(symbols)):
        if entry["registers"] is None or entry["spills"] is None:
            sys.exit(f"check_ptxas: {path} is cut short: no figures for {name}")
        entry["kernel"] = f"{Path(path).stem}/{name}"
    return found


def main(arguments):
    update, spills = arguments[:1] == ["--update"], arguments[:1] == ["--spills"]
    if update or spills:
        arguments = arguments[1:]
    if len(arguments) < (1 if spills else 2):
        sys.exit(__doc__)
    budget_path, reports = Path(arguments[0]), arguments[0 if spills else 1:]
    worst, faults = {}, []
    for entry in (e for path in reports for e in read_report(path)):
        if entry["spills"]:
            faults.append(f"{entry['kernel']} ({entry['arch']}) spills {entry['spills']} bytes")
        top = worst.setdefault(entry["kernel"], {"registers": 0, "shared": 0})
        for key in top:
            top[key] = max(top[key], entry[key])
    if spills:
        budgets = worst
    elif update:
        for figures in worst.values():
            figures["registers"] = (figures["registers"] + 7) // 8 * 8
        budget_path.write_text(json.dumps(worst, indent=2, sort_keys=True) + "\n")
        budgets = worst
    else:
        budgets = json.loads(budget_path.read_text())
    for kernel, figures in sorted(worst.items()):
        if kernel not in budgets:
            faults.append(f"{kernel} has no budget; it uses {figures}: run check_ptxas.py --update")
            continue
        for key, value in figures.items():
            if value > budgets[kernel][key]:
                faults.append(f"{kernel}: {value} {key}, budget {budgets[kernel][key]}")
    for kernel in sorted(set(budgets) - set(worst)):
        faults.append(f"{kernel} has a budget but was not compiled: run check_ptxas.py --update")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(worst)} kernels, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
