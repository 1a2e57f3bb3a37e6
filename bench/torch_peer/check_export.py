#!/usr/bin/env python3
"""Compares exported networks with Convoy in numbers: every registered network, at several sizes.

    check_export.py [--convoy build/release/convoy] [--only NAME] [--keep DIR]

For each case `convoy plan --export-torch` writes the network as a Python file at one size, and --export-values writes
weights and what Convoy computes with them at every size of the case; the file then compares itself with those values
(outputs, loss, gradients, moved statistics; see check() there for the limit). Rounding now and then turns the sign of
one value in front of a ReLU, which all gradients before it show a little: where nothing but gradients is off, and by
less than SIGN_CHANGES, other weights are drawn, and with one of them everything has to agree. Prints the largest
relative difference of each group per network. Exit code 0: all agree; 1: some do not; 77: there is no PyTorch.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

LIMIT = 1e-4
SIGN_CHANGES = 1e-2
SEEDS = (1, 2, 3, 4)
SECONDS = 600  # for one command
# By network: settings of each case, and sizes. The first size is the exported one; odd ones where the network takes them.
CASES = {
    "BiSeNet": [("MODEL.BACKBONE resnet18 SOLVER.AUX True", ["64x96", "65x97"])],
    "DeepLabV3_Plus": [
        ("MODEL.BACKBONE mobilenet_v2", ["64x96", "65x97"]),
        ("MODEL.BACKBONE resnet50 MODEL.OUTPUT_STRIDE 8", ["65x97"]),
        ("MODEL.BACKBONE xception65 MODEL.BN_EPS_FOR_ENCODER 1e-3 SOLVER.AUX True", ["65x97"]),
        (
            "MODEL.BACKBONE mobilenet_v2 MODEL.DEEPLABV3_PLUS.USE_ASPP False MODEL.DEEPLABV3_PLUS.ENABLE_DECODER False",
            ["65x97"],
        ),
    ],
    "FastSCNN": [("", ["64x96", "128x64"])],
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convoy", default="build/release/convoy")
    parser.add_argument("--cases", metavar="PROGRAM", help="export_cases of the tests: its small networks, too")
    parser.add_argument("--only", metavar="NAME", help="one network")
    parser.add_argument("--quick", action="store_true", help="the first case and size of each network")
    parser.add_argument("--keep", metavar="DIR", help="leave the files there")
    return parser.parse_args()


def command(arguments):
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS)
    return result.returncode, result.stdout, result.stderr


def convoy(program, arguments):
    code, output, errors = command([program, "plan", *arguments])
    if code != 0:
        raise SystemExit(f"error: convoy plan {' '.join(arguments)}: {errors.strip()}")
    return output


def compare(file, values, title):
    """Prints a line. Returns whether the file agrees with the values, and whether signs alone may be the reason."""
    code, output, errors = command([sys.executable, file, "--check", values, "--limit", str(LIMIT), "--json"])
    try:
        report = json.loads(output)
    except json.JSONDecodeError:
        print(f"FAIL  {title}: {errors.strip() or 'exit code ' + str(code)}", flush=True)
        return False, False
    worst = {}
    for figure in report["figures"]:
        group = f"{figure['pass']} {'outputs' if figure['group'].startswith('out') else figure['group']}"
        worst[group] = max(worst.get(group, (0, 0)), (figure["difference"], figure["single_precision"]))
    text = ", ".join(
        f"{group} {ours:.1e}" + (f" (single precision there: {own:.1e})" if ours > LIMIT else "")
        for group, (ours, own) in worst.items()
    )
    near = report["same_names"] and all(
        figure["ok"] or (figure["group"] == "gradients" and figure["difference"] < SIGN_CHANGES)
        for figure in report["figures"]
    )
    print(f"{'pass' if report['ok'] else 'near' if near else 'FAIL'}  {title}: {text}", flush=True)
    return report["ok"], near


def check_network(args, folder, name, settings, sizes):
    """Exports at the first size and compares at all; whether all agree."""
    file, values = os.path.join(folder, "net.py"), os.path.join(folder, "values.safetensors")
    network = ["MODEL.MODEL_NAME", name, "DATASET.NAME", "cityscape", *settings.split()]
    convoy(args.convoy, ["--export-torch", file, "--size", sizes[0], *network])
    good = True
    for size in sizes:
        for seed in SEEDS:
            drawn = ["--export-values", values, "--size", size, "--batch", "2", *network, "SEED", str(seed)]
            convoy(args.convoy, drawn)
            agrees, near = compare(file, values, " ".join([name, settings, size, "SEED", str(seed)]))
            if agrees or not near:
                break
        good = agrees and good
    return good


def check_cases(program, folder):
    code, _, errors = command([program, folder])
    if code != 0:
        raise SystemExit(f"error: {program}: {errors.strip()}")
    files = sorted(name for name in os.listdir(folder) if name.endswith(".py") and name != "net.py")
    results = [
        compare(os.path.join(folder, name), os.path.join(folder, name[:-3] + ".safetensors"), name)[0] for name in files
    ]
    return bool(results) and all(results)


def main():
    args = parse_args()
    if importlib.util.find_spec("torch") is None:
        print(f"{sys.executable} has no PyTorch (bench/setup-torch makes an environment with it): nothing is compared")
        return 77
    registered = convoy(args.convoy, ["--list-networks"]).split()
    forgotten = [name for name in registered if name not in CASES]
    if forgotten:
        raise SystemExit(f"error: check_export.py has no case for {', '.join(forgotten)}")
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or temporary
        os.makedirs(folder, exist_ok=True)
        if args.cases:
            good = check_cases(args.cases, folder)
        for name in [args.only] if args.only else registered:
            cases = CASES[name][:1] if args.quick else CASES[name]
            for settings, sizes in cases:
                good = check_network(args, folder, name, settings, sizes[:1] if args.quick else sizes) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
