#!/usr/bin/env python3
"""Checks networks.py against golden files: names, order, shapes, eval outputs, trace, losses, gradients, SGD step.

    check_golden.py FILE.json...        (files of cityscapes_fast_scnn, cityscapes_bisenet, cityscapes_bisenet_aux)

Prints a line per figure group and `N passed, N failed`; exit code 0 only if all passed.
The runs are in float64, which the golden figures are, so every figure must agree to 1e-6.
"""

import argparse
import json
import math
import sys

import numpy as np
import torch
from torch import nn

from networks import BiSeNet, FastScnn, mixed_cross_entropy

TOLERANCE = 1e-6
MASK = (1 << 64) - 1


def stream(name, case_seed, count):
    """u in [0,1) of a named number stream: FNV-1a of the name, then splitmix64 of seed + index, its top 24 bits."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    z = np.arange(count, dtype=np.uint64) + np.uint64((h ^ case_seed) & MASK) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) * 2.0**-24


def fill_values(kind, params, u):
    if kind in ("weight", "tweight"):
        return (2 * u - 1) * math.sqrt(3 / params[0])
    if kind in ("bias", "norm_bias", "running_mean"):
        return (2 * u - 1) * params[0]
    if kind in ("norm_weight", "running_var"):
        return params[0] + params[1] * u
    if kind == "num_batches_tracked":
        return np.zeros_like(u)
    raise SystemExit(f"state entry of kind '{kind}' is not known here")


def as_float32(values, shape):
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def fill_network(net, golden):
    state = {}
    for name, shape, kind, params in golden["state"]:
        count = int(np.prod(shape, dtype=np.int64))
        state[name] = as_float32(fill_values(kind, params, stream(name, golden["case_seed"], count)), shape)
    net.load_state_dict({k: v.double() for k, v in state.items()}, strict=True)


def make_input(golden):
    n, c, h, w = golden["input"]["shape"]
    offset, seed = golden["input"]["offset"], golden["case_seed"]
    u = stream("input", seed, n * c * h * w).reshape(n, c, h, w)
    v = stream("input.offset", seed, n * c).reshape(n, c, 1, 1)
    return as_float32((1 - offset) * (2 * u - 1) + offset * (2 * v - 1), (n, c, h, w)).double()


def make_target(golden):
    shape, seed = golden["target"]["shape"], golden["case_seed"]
    count = int(np.prod(shape))
    labels = np.floor(stream("target", seed, count) * golden["target"]["classes"]).astype(np.int64)
    labels[stream("target.ignore", seed, count) < 0.1] = -1
    return torch.from_numpy(labels.reshape(shape))


class Judge:
    def __init__(self):
        self.passed = self.failed = 0

    def group(self, name, worst, limit=TOLERANCE):
        good = worst <= limit
        self.passed += good
        self.failed += not good
        print(f"  {'pass' if good else 'FAIL'}  {name:<22} worst {worst:.2e}  (limit {limit:.0e})")


def relative(found, wanted, floor):
    return abs(found - wanted) / max(abs(wanted), floor)


def samples(tensor, count):
    flat = tensor.detach().reshape(-1)
    return flat[(torch.arange(count, dtype=torch.int64) * 2654435761) % flat.numel()]


def output_error(found, wanted):
    """Worst relative error of the L2 norm and of the samples (against the tensor's standard deviation)."""
    if list(found.shape) != wanted["shape"]:
        return math.inf
    want = torch.tensor(wanted["samples"], dtype=torch.float64)
    worst = relative(found.norm().item(), wanted["l2"], 1e-12)
    return max(worst, (samples(found, len(want)) - want).abs().max().item() / max(wanted["std"], 1e-12))


def outputs_error(found, wanted):
    if len(found) != len(wanted):
        return math.inf
    return max(output_error(f, w) for f, w in zip(found, wanted))


def gradient_error(net, wanted, global_l2):
    """Worst relative error of the norms; a gradient that is mathematically zero is compared with the global norm."""
    parameters = dict(net.named_parameters())
    worst = 0.0 if [row[0] for row in wanted] == list(parameters) else math.inf
    for row in wanted:
        grad = parameters[row[0]].grad
        if row[1] is None or grad is None:
            worst = max(worst, 0.0 if row[1] is None and grad is None else math.inf)
            continue
        worst = max(worst, relative(grad.norm().item(), row[1], 1e-6 * global_l2))
        want = torch.tensor(row[5], dtype=torch.float64)
        scale = max(row[1] / math.sqrt(grad.numel()), 1e-6 * global_l2)
        worst = max(worst, (samples(grad, len(want)) - want).abs().max().item() / scale)
    return worst


def trace_eval(net, x):
    """Eval forward; returns outputs and rows [name, type, shape, l2, mean] of every leaf module in call order."""
    rows, hooks = [], []
    for name, module in net.named_modules():
        if next(module.children(), None) is None:

            def note(mod, _, out, name=name):
                rows.append([name, type(mod).__name__, list(out.shape), out.norm().item(), out.mean().item()])

            hooks.append(module.register_forward_hook(note))
    net.eval()
    with torch.no_grad():
        outputs = net(x)
    for hook in hooks:
        hook.remove()
    return outputs, rows


def trace_error(found, wanted):
    if [r[:3] for r in found] != [r[:3] for r in wanted]:
        for f, w in zip(found, wanted):
            if f[:3] != w[:3]:
                print(f"  first difference of the trace: found {f[:3]}, golden {w[:3]}")
                break
        return math.inf
    return max(relative(f[3], w[3], 1e-12) for f, w in zip(found, wanted))


def set_training(net, batch_statistics):
    """The training path with dropout off; batch norms on batch or on running statistics."""
    net.train()
    for module in net.modules():
        if isinstance(module, (nn.Dropout, nn.Dropout2d)):
            module.eval()
        elif isinstance(module, nn.BatchNorm2d):
            module.train(batch_statistics)


def backward(net, golden, x, target):
    net.zero_grad(set_to_none=True)
    outputs = net(x)
    loss = mixed_cross_entropy(outputs, target, golden["facts"]["aux_weight"])
    loss.backward()
    return outputs, loss.item()


def check(path, judge):
    with open(path) as f:
        golden = json.load(f)
    facts = golden["facts"]
    kinds = {"FastSCNN": FastScnn, "BiSeNet": BiSeNet}
    if facts["model_name"] not in kinds:
        raise SystemExit(f"{path}: network '{facts['model_name']}' has no peer here")
    net = kinds[facts["model_name"]](facts["nclass"], facts["aux"]).double()
    print(path)

    found = [[k, list(v.shape)] for k, v in net.state_dict().items()]
    judge.group("names, order, shapes", 0.0 if found == [r[:2] for r in golden["state"]] else math.inf)
    fill_network(net, golden)
    x, target = make_input(golden), make_target(golden)
    judge.group("input, target", max(relative(x.norm().item(), golden["input"]["l2"], 1e-12),
                                     abs(target.sum().item() - golden["target"]["sum"])))

    outputs, rows = trace_eval(net, x)
    judge.group("eval trace", trace_error(rows, golden["eval"]["trace"]))
    judge.group("eval outputs", outputs_error(outputs, golden["eval"]["outputs"]))

    for mode in ("frozen", "train"):
        wanted = golden[mode]
        fill_network(net, golden)
        set_training(net, batch_statistics=mode == "train")
        outputs, loss = backward(net, golden, x, target)
        judge.group(f"{mode} outputs", outputs_error(outputs, wanted["outputs"]))
        judge.group(f"{mode} loss", relative(loss, wanted["loss"], 1e-12))
        judge.group(f"{mode} gradients", gradient_error(net, wanted["grads"], wanted["grad_summary"]["global_l2"]))

    modules = dict(net.named_modules())
    worst = 0.0
    for name, mean, _, var, _, batches in golden["train"]["bn"]:
        bn = modules[name]
        worst = max(worst, relative(bn.running_mean.norm().item(), mean, 1e-12),
                    relative(bn.running_var.norm().item(), var, 1e-12), abs(bn.num_batches_tracked.item() - batches))
    judge.group("running statistics", worst)
    torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4).step()
    parameters = dict(net.named_parameters())
    judge.group("SGD step", max(relative(parameters[n].norm().item(), l2, 1e-12) for n, l2, _ in golden["train"]["sgd"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    args = parser.parse_args()
    judge = Judge()
    for path in args.files:
        check(path, judge)
    print(f"{judge.passed} passed, {judge.failed} failed")
    sys.exit(judge.failed > 0)


if __name__ == "__main__":
    main()
